"""The program of the seat `counter`: it gets its mail on one line of JSON and answers in lines of JSON.

To send mail to another seat, print {"send": {"to": "greeter", "body": "..."}} and read one line: the mail's id.
"""

import json
import sys

turn = json.loads(sys.stdin.readline())
print(json.dumps({"progress": "counting"}), flush=True)
words = sum(len(mail["body"].split()) for mail in turn["mail"])
counted = "1 word" if words == 1 else f"{words} words"
print(json.dumps({"outcome": "delivered", "detail": counted}), flush=True)
