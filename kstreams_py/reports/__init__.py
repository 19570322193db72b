"""Reports: HTML pages, each one file with its charts.

charts  adapter  charts as SVG, for wide and for narrow screens
page    acts     the frame of a report: its style and its script
"""
