"""A site's activity: the events it makes, and the pipelines that make something of them.

`events` names the topics. `site` generates them. `pipelines` read them on Spark, each with tables and a topic of its
own. `live` runs all of it together, shows it, and reports.
"""
