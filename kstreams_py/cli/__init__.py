"""The command `kstreams`: a file for each group of commands.

In reading order:

main          adapter  the command with its groups; logs to stderr, and turns errors into a message and an exit status
streams       adapter  repairs the standard streams: closed ones, missing characters, outputs that cannot be written
usage         adapter  the form of --help: commands in panels, and a name for the value of each option
options       adapter  arguments, options and questions that several commands share
run           adapter  kstreams run
new           adapter  kstreams new
dev           adapter  kstreams dev
records       adapter  kstreams send, tail
deploy        adapter  kstreams k8s, systemd
topics        adapter  kstreams topics create, check, describe
slots         adapter  kstreams slots list, release
dead_letters  adapter  kstreams dead-letters list, show, replay, discard
sources       adapter  kstreams sources list, retry
transactions  adapter  kstreams transactions list, describe, find-hanging, abort, commit
recover       adapter  kstreams recover reset, export, restore
doctor        adapter  kstreams doctor
acls          adapter  kstreams acls
graph         adapter  kstreams graph
broker        adapter  kstreams broker start, stop, status
config        adapter  kstreams config show
jars          adapter  kstreams jars
spark         adapter  kstreams spark-options
pipeline      adapter  kstreams pipeline run, list, status, reset, sql, submit
state         adapter  kstreams state show
peers         adapter  kstreams peer, job submit|list|show|kill|wait, cluster status|log
order         adapter  kstreams order, order status, order takeover
order_objects adapter  kstreams order stopped, order resume, order accept
demo          adapter  kstreams demo flights|ordering|channels
"""
