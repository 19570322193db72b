"""The fuzzer of what decodes bytes from outside: only its documented errors come out, in bounded time and memory.

targets.py has the decoders, with encodings to begin with; run.py fuzzes one of them in a process of its own, as Atheris
takes it over; test_decoders.py runs all in the long tier. What it finds becomes a row of tests/hostile/.
"""
