"""Programs made smaller and quicker without a change of what they mean."""
