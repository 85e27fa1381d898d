"""What others test their own seats and adapters with: twins, contracts, fleets on real parts.

Belongs here: shipped, public test equipment.
Does not: tests of this project.
"""
