"""Quick measurements that print a table and publish nothing: `python -m benchmarks.tools.search_speed`."""
