"""The journal: records of deliveries in a topic of their own, and the recovery from these records after a crash.

In reading order:

records          rule  the records of a journal, and the newest unit that they form
recovery         rule  whether the last delivery was committed, and where its task resumes
choices_journal  acts  saves the choices of an alts
deliveries       acts  reads the tail of a journal, and knows which snapshots are in force
"""
