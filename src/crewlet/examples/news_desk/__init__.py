"""An example company: two seats that are language models, and a script to run them on without any provider.

Belongs here: its documents and the script. The programs of the project do not know it.
"""
