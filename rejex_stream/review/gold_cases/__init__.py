"""Cases whose truth is known, put into the queue to measure the people who answer them.

In come positions of events with what they were: `seeding` reads them and makes them ordinary items.
Out come counts of answers that were wrong, in `reviewer_errors`. Open `seeding` first.
"""
