"""What runs a graph on other machines: manifests and units.

In reading order:

slot_number  rule  the slot number of `--slot`, taken from the place where the process runs
kubernetes   rule  a StatefulSet with a pod for each slot, as YAML
systemd      rule  a unit of systemd
"""
