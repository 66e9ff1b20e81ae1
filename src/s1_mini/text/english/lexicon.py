"""Words that the rules cannot tell: capitals that are said as a word, that are spelt, or that only shout."""

from __future__ import annotations

from s1_mini.text.tables import words

SAID = frozenset(
    words(
        "NASA NATO UNESCO UNICEF OPEC AIDS COVID RAM ROM PIN SIM GIF ASCII IKEA NAFTA ASEAN SWAT FIFA UEFA LEGO "
        "SARS NASDAQ YOLO LASER RADAR SONAR SCUBA CAPTCHA ECOWAS OSHA HIPAA FEMA NOAA PETA NORAD GUI WYSIWYG JPEG "
        "ZIP MIDI BIOS CERN INTERPOL EUROPOL TASER MERS CRISPR LIDAR PISA TOEFL AWOL FOMO SIDS GAAP DARPA COBOL "
        "IMAX ICANN NIMBY MOMA CAD MAC DOS LAN WAN VIN"
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
        "CE IOU LLC PLC PLO IRA UPS DHL KFC IEC EULA UI UX"
    )
)
# Said as words in capitals, too; longer ones are if they have a vowel and are in neither list above.
SHORT = frozenset(
    words(
        "A I AN AS AT BE BY DO GO HE IF IN IS ME MY NO OF OH ON OR SO TO UP WE HI YO YES NOT AND THE ALL ANY ARE "
        "ASK BAD BAG BED BIG BOX BOY BUS BUT BUY CAN CAR CAT CRY CUP CUT DAD DAY DID DIE DOG DRY EAT END EYE FAR "
        "FEW FLY FOR FUN GET GOD GOT GUN GUY HAD HAS HAT HER HEY HIM HIS HIT HOT HOW ICE ITS JOB JOY KEY KID LAW "
        "LAY LEG LET LIE LOT LOW MAD MAN MAP MAY MEN MET MOM MR MRS MS MUM NEW NOR NOW ODD OFF OIL OLD ONE OUR "
        "OUT OWN PAY PUT RAN RED RUN SAD SAT SAW SAY SEA SEE SET SEX SHE SIR SIT SIX SKY SON SUN TAX TEA TEN TIE "
        "TOO TOP TRY TWO USE VAN WAR WAS WAY WET WHY WIN WON YET YOU ZOO"
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
