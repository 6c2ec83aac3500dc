"""What hardware there is and which GPU code it can run.

`gpus` is the table of GPUs, `targets` reads the names that people use, `rules` says which code runs
where, `probe` looks at a node, `scan` looks into files, `verdict` puts the two together.
"""
