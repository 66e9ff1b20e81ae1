"""Exceptions to the rules: capitals that are a word, an abbreviation, or only shouting."""

from __future__ import annotations

from s1_mini.text.tables import words

SAID = frozenset(
    words(
        "NASA NATO UNESCO UNICEF OPEC AIDS COVID RAM ROM PIN SIM GIF ASCII IKEA NAFTA ASEAN SWAT FIFA UEFA LEGO "
        "SARS NASDAQ YOLO LASER RADAR SONAR SCUBA CAPTCHA ECOWAS OSHA HIPAA FEMA NOAA PETA NORAD GUI WYSIWYG JPEG "
        "ZIP MIDI BIOS CERN INTERPOL EUROPOL TASER MERS CRISPR LIDAR PISA TOEFL AWOL FOMO SIDS GAAP DARPA COBOL "
        "IMAX ICANN NIMBY MOMA CAD MAC DOS LAN WAN VIN COP GNU"
    )
)
SPELT = frozenset(
    words(
        "FBI CIA USA UK EU UN US UAE NSA IRS CEO CFO CTO COO IBM BBC CNN NBC ABC CBS ESPN HTML CSS HTTP HTTPS URL "
        "URI API SDK USB CPU GPU TPU LED LCD OLED DVD CD TV PC PDF PNG SVG XML SQL DNS IP TCP UDP SSH SSL TLS VPN "
        "WWW FTP IT AI ML AR VR HR PR QA ID GDP GNP VAT MBA PHD BA MA BSC MD DJ MC VIP DIY FAQ ASAP RSVP TBA TBD "
        "ETA FYI LOL OMG BTW DNA RNA HIV ADHD OCD PTSD ICU ER MRI NHS WHO IMF WTO ECB UFO SUV BMW ATM PO AC DC AM "
        "FM PM EST PST CST MST GMT UTC BST CET NBA NFL NHL MLB UFC PGA NCAA YMCA ACLU NAACP IEEE GDPR AARP AAA "
        "EEG IQ EQ OK OS IOS DOI ISBN AOL AWS SMS MMS GPS ISP IDE SATA LGBT LGBTQ EPA FDA FCC SEC CDC NIH DEA DOJ "
        "NRA UCLA MIT NYU USSR GDR RGB HD UHD HDMI DIN IPO ROI KPI ROTFL SEO CRM ERP HQ EV AGM NGO APR ISO CV BC AD "
        "CE IOU LLC PLC PLO IRA UPS DHL KFC IEC EULA UI UX ICYMI ASPCA"
    )
)
# Said as words in capitals, too; longer ones are if they have a vowel and are in neither list above.
SHORT = frozenset(
    words(
        "JSON YAML NVIDIA CMAKE REPL A I AN AS AT BE BY DO GO HE IF IN IS ME MY NO OF OH ON OR SO TO UP WE HI YO YES "
        "NOT AND THE ALL ANY ARE ASK BAD BAG BED BIG BOX BOY BUS BUT BUY CAN CAR CAT CRY CUP CUT DAD DAY DID DIE DOG "
        "DRY EAT END EVE EYE FAR FEW FLY FOR ARM ACT ADD AGE AGO AID AIM AIR ART ATE BET BIT BUG CAP COW COP DAM DEN "
        "DIG DIP DOT DUE EAR EGG FAN FAT FEE FIT FIX FOX GAP GAS GYM HID HUG INN JAM JAR JET LAB LAP LIP LOG MIX MUD "
        "NET NUT OWE PAN PEN PET PIE PIG PIT POT RAT RAW RAY ROW RUB RUG SIN SIP SUM TAP TAR TIN TIP TON TOY VOW WAX "
        "WEB WIG ZIP FUN GET GOD GOT GUN GUY HAD HAS HAT HER HEY HIM HIS HIT HOT HOW ICE ITS JOB JOY KEY KID LAW LAY "
        "LEG LET LIE LOT LOW MAD MAN MAP MAY MEN MET MOM MR MRS MS MUM NEW NOR NOW ODD OFF OIL OLD ONE OUR OUT OWN "
        "PAY PUT RAN RED RUN SAD SAT SAW SAY SEA SEE SET SEX SHE SIR SIT SIX SKY SON SUN TAX TEA TEN TIE TOO TOP TRY "
        "TWO USE VAN WAR WAS WAY WET WHY WIN WON YET YOU ZOO"
    )
)
# Clusters of consonants that an English word or syllable begins and ends with, without a plural's S.
ONSETS = frozenset(
    words(
        "BL BR CH CHL CHR CL CR CZ DR DW DY FJ FL FR GH GL GN GR GW KH KL KN KR LL LY MN MY NY PF PH PHL PHR PL PN PR "
        "PS QU RH SC SCH SCHL SCHM SCHN SCHW SCL SCR SH SHM SHR SK SKR SL SM SN SP SPH SPL SPR SQU ST STR SV SW TH "
        "THR THW TR TS TW VL VR WH WR ZH ZL"
    )
)
CODAS = frozenset(
    words(
        "BB BT CH CHT CK CKS CT DD DGE DTH DZ FF FT GG GH GHT GN GS KS LB LC LCH LD LF LFTH LK LL LM LN LP LPT LS LSH "
        "LT LTH LTZ LV LZ MB MF MM MN MP MPH MPT MS NC NCH NCT ND NG NGTH NK NKS NN NS NSK NST NT NTH NX NZ PH PP PS "
        "PT PTH RB RC RCH RD RF RG RGH RK RL RLD RM RMTH RN RP RR RS RSH RST RT RTH RTZ RV RX RZ SCH SH SK SM SP SS "
        "ST TCH TH THM TS TT TZ WD WK WL WN WS WT XT XTH ZZ"
    )
)
AMBIGUOUS = frozenset(words("US IT WHO AM AI ME OR IN ID OK"))  # words between shouted words, letters elsewhere

# With a letter twice, so that "goooood" is good and "sooooo" is so.
DOUBLED = frozenset(
    words(
        "good cool food mood soon moon noon too tool fool room boom zoom book look took cook see seen need feed "
        "sweet week been free tree three green keep sleep sleepy feel deep meet street cheese geez all ball call "
        "tell well will hell yell still small full kill bell fell hill hello yellow really off stuff miss kiss "
        "less pass boss cross grass class add odd egg happy funny sorry pretty silly boo moo woo zoo ooh aah eek "
        "hmm shh brr grr mm zz woohoo yahoo coffee bee loose goose smooth proof goodness goodbye hooray yippee "
        "whee wheel asleep agree speed beer cheers ass better bitter letter butter happen summer winner dinner "
        "running school blood door floor poor"
    )
)
