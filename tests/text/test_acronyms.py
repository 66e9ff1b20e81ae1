"""Initialisms that are also words are spelt or said by the words around them."""

from __future__ import annotations

import pytest

from s1_mini.text import spoken

CASES = """
SAT scores rose.|S A T scores rose.
She took the SAT in May.|She took the S A T in May.
I scored 1500 on the SAT.|I scored fifteen hundred on the S A T.
Both SAT and ACT scores count.|Both S A T and A C T scores count.
He SAT there for hours.|He sat there for hours.
The ACT test is hard.|The A C T test is hard.
You must ACT now.|You must act now.
He has ADD.|He has A D D.
You must ADD salt.|You must add salt.
The DOT said so.|The D O T said so.
Put a DOT here.|Put a dot here.
She has MS.|She has M S.
MS Word is open.|M S Word is open.
He needs an MR scan.|He needs an M R scan.
US troops left the US.|U S troops left the U S.
The US's economy grew.|The U S's economy grew.
Join US today.|Join us today.
One of US is right.|One of us is right.
Give US citizens a vote.|Give U S citizens a vote.
IT support helps.|I T support helps.
He works in IT.|He works in I T.
Do IT now.|Do it now.
I love IT!|I love it!
The WHO report is out.|The W H O report is out.
The WHO's chief spoke.|The W H ohs chief spoke.
WHO guidelines changed.|W H O guidelines changed.
Guess WHO came.|Guess who came.
I know WHO it was.|I know who it was.
AIDS is a disease.|AIDS is a disease.
I AM here.|I am here.
It is on AM radio at 10 AM.|It is on A M radio at ten A M.
Give it to ME.|Give it to me.
This OR that.|This or that.
She is an OR nurse.|She is an O R nurse.
He lives in Portland, OR.|He lives in Portland, O R.
Come IN now.|Come in now.
JOIN US NOW!|join us now!
WHO ARE YOU? ID cards, please.|who are you? I D cards, please.
CEOs and FAQs help.|C E ohs and F A cues help.
The CEO's car has two TVs.|The C E ohs car has two T V's.
He bought SUVs. APIs changed.|He bought S U V's. A P I's changed.
Two PhDs, an M.D. and two Ph.D.s met.|Two P H D's, an M D and two P H D's met.
The FBI's PCs hold PDFs and URLs.|The F B I's P sees hold P D effs and U R ells.
Kids with SATs and IDs.|Kids with S A T's and I D's.
The MPs' pay rose.|The M P's pay rose.
He took the ACT twice.|He took the A C T twice.
Get IT done.|Get it done.
Tell US more.|Tell us more.
The ACT is shorter than the SAT.|The A C T is shorter than the S A T.
READ THE ACT.|read the act.
She got three As, two Bs and some Cs.|She got three ays, two B's and some sees.
The As and Bs are in front.|The ays and B's are in front.
He has straight As.|He has straight ays.
The three Rs, two Vs and an M.|The three R's, two V's and an M.
At the FED, BAN THE BAR.|At the fed, ban the bar.
My GPA and SAT impress DIYers.|My G P A and S A T impress D I Yers.
Mind your Ps and Qs.|Mind your P's and cues.
As I said, all As I know.|As I said, all As I know.
ICE agents had a PET scan and a PIN.|ice agents had a pet scan and a PIN.
"""


@pytest.mark.parametrize("case", [line for line in CASES.split("\n") if line])
def test_an_initialism_that_is_also_a_word_is_read_by_its_neighbours(case: str) -> None:
    written, said = case.split("|")

    assert spoken(written) == said
