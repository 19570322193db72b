"""Bytes <-> values: serdes, and where the schemas of their writers are kept.

A new serde is a new file beside `avro`: a class with `serialize` and `deserialize`, and with `bind` if it needs the
registry or the name of its topic.

In reading order:

serdes         rule     the protocol Serde; Bytes, String and Json
registry       rule     the protocol Registry, which keeps writers' schemas by id
avro           rule     the serde Avro: values in the wire format, by the reader's and the writer's schemas
schemas        rule     parses and names Avro schemas, and makes their canonical text
writers        acts     the schemas of a topic's writers, and which of them readers follow
logical        adapter  logical types, which refuse values that fastavro would change
bounds         rule     how deeply a value may be nested, and how many items it may have
evolution      rule     whether a new schema can read data of an older one
schema_files   adapter  schemas in files: those that a program names, and those that this package ships
fitting        rule     a quick check of whether a value fits a schema
registries     adapter  opens the registry that the settings name: files, or a server
"""
