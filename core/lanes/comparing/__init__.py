"""From results to what can be said of them: figures side by side, judged by launches, and what differs.

Pure: `lanes.result/1` documents go in (`compare`), frozen values come out (`comparison`); nothing here
reads a file, knows an engine, or prints.
"""
