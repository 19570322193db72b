"""stub"""
text = mermaid = svg = str
