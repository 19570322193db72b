"""What the documentation site has beside the pages in docs/.

reference  pages that are made from the code: settings, metrics, commands, exit statuses, the public names
outside    links to the repository, and what a page or a style sheet fetches from other hosts
hooks      for mkdocs: adds the pages, and refuses a site that fetches anything from outside
"""
