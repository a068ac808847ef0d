"""A site's activity: its events, and the pipelines that process them.

`events` names the topics, `site` generates them, `pipelines` process them on Spark into tables and topics, `live` runs
everything together and shows it, `report` compares what was found with what was planted.
"""
