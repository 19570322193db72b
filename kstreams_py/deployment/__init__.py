"""The manifests and units that run a graph on other machines.

In reading order:

slot_number  rule  the slot number of `--slot`, given or taken from the environment
kubernetes   rule  a StatefulSet with a pod for each slot, as YAML
systemd      rule  a systemd unit
"""
