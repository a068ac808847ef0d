"""The classic consumer group: members, generations, assignments."""
