"""The program of the seat `counter`: it gets its mail on one line of JSON and answers in lines of JSON.

To send mail to another seat, print {"send": {"to": "greeter", "body": "..."}} and read one line: the mail's id.
"""

import json
import sys

turn = json.loads(sys.stdin.readline())
words = sum(len(mail["body"].split()) for mail in turn["mail"])
print(json.dumps({"progress": f"reading {len(turn['mail'])} mail"}), flush=True)
print(json.dumps({"outcome": "delivered", "detail": f"{words} words"}), flush=True)
