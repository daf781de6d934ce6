"""Words for `casing`: acronyms, special spellings, English proper nouns, and German words by ending.

The German tables are derived from sentences under CC0-1.0 (Common Voice, CoVoST 2, MLQE-PE). The longest matching
ending of a word decides whether it has lower case; `^` is the start of the word. `GERMAN_LOWER_CASE_WORDS` and
`GERMAN_CAPITALIZED_WORDS` are the most frequent exceptions. All of them have `ss` instead of `ß`.
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _spellings(text: str) -> dict[str, str]:
    return {word.upper(): word for word in text.split()}


# With a vowel, so that the spelling does not show that they are acronyms. Common words are not in the table.
ACRONYMS = _words(
    """
    ADAC ADHD ADHS AES AFD AKW AOK API ASAP ASCII ASEAN AWS BIC BIOS CEO CFO CIA CLI COBOL COVID CPU CTO DAX DIY DNA
    DSGVO EDV EEG EKG ERP ESA EXIF EZB FAQ FIFA FIFO FYI GIF GNOME GNU GPU GUI GUID HIV IAEA IATA IBAN IBM ICAO IEEE
    IHK IKEA IMAP IMEI IOC IPTV IRS ISBN ISDN ISP ISS IUPAC JPEG JSON KPI LAN LGBTQ LIFO LTE MIDI MRI MSCI NASA NASDAQ
    NBA NGO NOAA NOK NSA OCR ODBC OECD OEM OLED OMC OMS ONU OPEC OSCE OSZE OTA OTAN PEGI POSIX RAF RGB SAAS SAML SAP
    SARS SATA SEO SLA SMS SOS SUV SWOT TBA TVA UAE UBS UEFA UEFI UFO UHD UNESCO UNHCR UNICEF UNIX UPS URI URL USA USB
    USD UTC UTF UUID UWG VAT VIP VOIP WAN WAV WLAN WTO YAML YMCA ZIP
    """
)

# `PCS` is a plural in English, `CSS` is not.
COUNTABLE_ACRONYMS = _words("API ATM CD CEO CPU DVD FAQ GPU ID LED NGO PC PDF PIN SUV TV UFO URL VIP VM")

# Two letters, or words of other languages: acronyms in English and German only.
ENGLISH_AND_GERMAN_ACRONYMS = _words(
    """
    AG AI CA DIN EC EU ID IDE IE IO IP ISO KI LED NATO OK PA PIN PR QA RAM SIM TAN UI UK UN UNO UX VR
    """
)

# Words that capitals would hide: `IPHONE` is `iPhone`.
SPELLINGS = _spellings(
    """
    BAföG DevOps DocuSign Dr eBay FaceTime GmbH GHz GitHub GitLab HDMI Hz iCloud iMac iOS iPad iPhone iPod iTunes
    JavaScript Jr kHz kWh LaTeX LinkedIn macOS MHz Mr Mrs Ms Mt MwSt MySQL NodeJS OneDrive OpenAI PayPal PhD
    PostgreSQL PowerPoint PowerShell Prof SharePoint Sr St StGB StVO TikTok TypeScript WhatsApp WordPress YouTube
    """
)

# Words of two and three letters that are not acronyms. One of them shows that a text in capitals is ordinary language.
SHORT_WORDS = _words(
    """
    ab act add age ago air all am an and any are ark art as ask at auf aus auto away bad bag ball bar bed bei bin bis
    bit box boy bus but buy by can car cat cut dad das day dec dem den der des did die dir do dog dry du due ear eat
    ein eis end er es eye fan far few fit fly for fox free fri fun gas get go gut guy had has hat he help her hey hi
    him his hit hot how hut ice ich if ihm ihn ihr ihre im in ins is ist its ja job key kid law lay leg let lie log
    los low mad man map mar may me men mir mit mix mom mut my neu new nie no nor not nov now nun nur ob oct of off oil
    old on one or ort our out own pay per pet put rad rat raw red rot run sad save say sea see sep set sex she sie sit
    six sky so son tag tax tea ten the tip to toe too top tor toy try tue tun two uhr um und uns up use van via vom
    von vor wahl war was way we wed wer wet who why wie win wir wo wow yes yet you zoo zu zug zum zur öl über
    """
)

# Names that have a capital in most languages.
BRANDS = _words(
    """
    adobe airbus amazon audi bing bluetooth boeing bosch chromium citroën dacia daimler disney ethernet facebook
    fedora ferrari fiat firefox gmail google honda huawei hyundai instagram intel java kawasaki kubernetes
    lamborghini lenovo linux mastercard mazda mercedes microsoft mitsubishi mozilla netflix nikon nintendo nissan
    nokia nvidia opel outlook panasonic peugeot pinterest playstation porsche python reddit renault samsung siemens
    skoda skype sony spotify suzuki tesla toshiba toyota twitter ubuntu unicode volkswagen volvo wikipedia windows
    xbox xiaomi yahoo yamaha
    """
)

CITIES_AND_BRANDS = BRANDS | _words(
    """
    amsterdam android angeles athens bangkok barcelona basel beijing belfast berlin bonn boston brussels bucharest
    budapest cairo cambridge canberra chicago cologne copenhagen dallas delhi detroit dortmund dresden dubai dublin
    düsseldorf edinburgh eiffel florence frankfurt geneva glasgow hamburg hannover hanover heidelberg helsinki
    hollywood houston istanbul jerusalem kiev kyiv kyoto leipzig lisbon liverpool london luxembourg lyon madrid
    mainz manchester marseille melbourne miami milan montreal moscow mozart mumbai munich nairobi naples nuremberg
    orleans osaka oslo oxford paris philadelphia potsdam prague quebec reykjavik rome rotterdam salzburg seattle
    seoul shanghai sofia stockholm stuttgart sydney tokyo toronto vancouver venice vienna warsaw washington
    wimbledon york zagreb zurich
    """
)

# Countries, nationalities, languages, religions, days, months, holidays, given names and common surnames.
ENGLISH_NAMES = _words(
    """
    aaron abraham adam adele adrian afghanistan africa african africans agnes ahmed alan alaska albania albanian
    albert alberto alex alexander alexandra alfred algeria algerian ali alice alicia alison allah allen amanda amelia
    america american americans amy ana anderson andorra andrea andreas andrew angela angelina angola anita ann anna
    anne annie antarctica anthony antonio april arab arabia arabian arabic arabs arctic argentina argentinian arizona
    arkansas armenia armenian arnold arthur ashley asia asian asians atlantic august austin australia australian
    australians austria austrian austrians azerbaijan bahamas bahrain baker balkan baltic bangladesh barack barbados
    barbara barry bavaria bavarian beatrice beethoven belarus belgian belgium ben bengali benjamin bermuda bernard
    bernhard beth betty bible bob bobby bolivia bosnia botswana brandon brazil brazilian brenda brian brit britain
    british briton brooklyn bruce bruno bryan buddha buddhism buddhist bulgaria bulgarian burma burmese caesar
    california cambodia cameron cameroon canada canadian canadians caribbean carl carla carlos carmen carol carolina
    caroline catalan catherine catholic catholics cathy caucasus charles charlie charlotte chile chilean china chinese
    chloe chris christ christian christianity christians christina christine christmas christoph christopher cindy
    claire clara claudia clinton colombia colorado columbia columbus congo connecticut connor craig croatia croatian
    cuba cuban cynthia cyprus czech dakota dan dane danes daniel daniela danish danny danube darwin dave david debbie
    deborah december delaware denmark dennis derek diana diane diego diwali dmitri dominic donald donna doris dorothy
    doug douglas duncan dutch dylan easter ecuador ed eddie edgar edward edwin egypt egyptian einstein elaine eleanor
    elena eli elisabeth elizabeth ella ellen elon elvis emil emily emma england english englishman eric erik erika
    erin ernest ernst esther estonia estonian ethan ethiopia eugene europe european europeans eva evelyn everest
    february felix ferdinand fernando fiji filipino finland finnish fiona flemish florian florida france francis
    francisco franz fred frederick french frenchman freud friday fridays friedrich fritz fuji gaelic gandhi gary gaza
    george georgia georgian gerald gerhard german germans germany ghana gilbert gina giovanni goethe gordon grandma
    grandpa greece greek greeks greenland greg gregory guatemala gustav haiti halloween hannah hans hanukkah harold
    harris harrison harry hawaii hebrew heidi heinrich helen helena helga henry herbert himalayas hindi hindu hindus
    hitler hokkaido holland homer honduras hong howard hugh hugo hungarian hungary ian iceland icelandic idaho igor
    illinois india indian indiana indians indonesia indonesian ingrid iowa iran iranian iraq iraqi ireland irene irish
    isaac isabel isabella islam islamic israel israeli italian italians italy ivan jackie jackson jacob jake jamaica
    james jamie jane janet january japan japanese jasmine jason jean jeff jefferson jeffrey jennifer jenny jeremy
    jerry jessica jesus jew jewish jews jim jimmy joan joanna joe joel johann johannes john johnny johnson jon jonas
    jonathan jones jose joseph josh joshua juan judaism judith judy julia julian julie julius july june justin kansas
    karen karl kate katherine kathleen kathy katie kazakhstan keith kelly ken kennedy kenneth kentucky kenya kevin kim
    klaus kong koran korea korean kosovo kurdish kurt kuwait kyle laos larry latin latvia latvian laura lauren
    lawrence leah lebanon leo leon leonard leonardo leslie lewis liam liberia libya liechtenstein lincoln linda lisa
    lithuania lithuanian liz lopez los louis louise louisiana lucas lucia lucy ludwig luis luke luther lutheran lydia
    macedonia madagascar madison maine malawi malaysia malaysian malcolm maldives malta maltese manhattan manuel
    marcel marco marcus margaret maria marie marilyn mario marion marlene martha martin marx mary maryland
    massachusetts matt matthew maurice mauritius mediterranean megan melanie melissa mexican mexico michael michelle
    michigan miguel mike mikhail miller minnesota miranda mississippi missouri mitchell mohamed mohammed moldova molly
    monaco monday mondays mongolia mongolian monica montana montenegro moore moroccan morocco morris moses mozambique
    muhammad muller murphy muslim muslims myanmar namibia nancy naomi napoleon natalie nathan nebraska neil nelson
    nepal netherlands nevada newton nicaragua nicholas nick nicolas nicole nigeria nigerian nina noah nora norman
    norway norwegian november obama oceania october ohio oklahoma oliver olivia omar oregon oscar otto ottoman owen
    pablo pacific pakistan pakistani palestine palestinian pamela panama paraguay parker patricia patrick paul paula
    pedro pennsylvania persia persian peru peter phil philip philippine philippines phillip picasso pierre plato
    poland portugal portuguese protestant protestants prussia prussian putin pyrenees qatar quran rachel ralph ramadan
    raphael raymond rebecca regina rhine richard ricky rita robert roberto roberts robinson roger roland romania
    romanian ron ronald roosevelt rosa rosie ross roy rudolf russell russia russian russians ruth rwanda ryan sahara
    sam samantha samoa samuel san sandra sandy sara sarah sasha saturday saturdays saudi saxony scandinavia
    scandinavian scot scotland scots scott scottish sean sebastian senegal september serbia serbian sergei shakespeare
    shane sharon sheila shirley siberia sicily simon singapore slovak slovakia slovenia slovenian smith somalia sophia
    sophie soviet spain spaniard spanish stalin stanley stefan stella stephanie stephen steve steven stewart stuart
    sudan sunday sundays susan sven swede sweden swedish swiss switzerland sylvia syria syrian taiwan tanya tanzania
    taylor ted tennessee teresa terry texas thai thailand thames thanksgiving theo theodore theresa thomas thompson
    thursday thursdays tibet tim timothy tina toby todd tom tommy tony tracy trump tuesday tuesdays tunisia turkish
    tyler uganda ukraine ukrainian ursula uruguay utah uzbekistan valentina valentine vanessa vatican venezuela vera
    vermont veronica victor victoria vietnam vietnamese vincent virginia vladimir wales walter wednesday wednesdays
    welsh wendy werner wilhelm william williams wilson winston wisconsin wolfgang wyoming xavier yemen yiddish yoko
    yugoslavia yuri yvonne zambia zealand zimbabwe zoe
    """
)

# Months and names that are also common words, after one of these words or next to a number.
ENGLISH_MONTHS = frozenset({"march", "may"})
ENGLISH_BEFORE_MONTHS = _words("by during early end from in last late mid next of on since this until")

# Lower case in spite of a missing vowel, or of one letter between dots.
ABBREVIATIONS = _words(
    """
    bzw cf cm ft ggf hrs kg km lb lbs mg min ml mm mph pg pp pt pts px sth tbsp tsp usf usw vgl vs zzgl zzt hmm pst
    psst shh shhh brr grr pfft tsk nth
    """
)
GERMAN_ABBREVIATIONS = _spellings("Nr Str Tel Abb Abs Art Bd Hr Fr Frl Mio Mrd Stk Tsd Std Hbf Jh Jhd Mrz")
DOTTED = _spellings(
    """
    a.k.a. a.m. d.h. e.g. i.d.R. i.e. i.V.m. m.E. n.a. o.ä. o.g. p.a. p.m. s.o. s.u. u.a. u.U. u.v.m. v.a. v.s. z.B.
    z.T.
    """
)

GERMAN_LOWER_CASE_ENDINGS = _words(
    """
    aart ab aber abil aler alls als ander andt angen ankte ar aran arb arer arf arum auche aue auf aufs aute bald bare
    bei beide beim bin bis bitte boren boten bsten ckeln cken dann das dass dein denke dest die dient dies dings dnen
    dort dran drei du ebend echs eder efern egen ehme ehmen ehn eicht eie eift eils eine elbe elber elter em en enau
    end ende ender endes ene enen ener enkte enn erall ere erer erter erum es eser eses esten esund etan eu euch eue
    eun euten fach fache fand fast fft fften fiel finde flog fnen fort frei fuhr fügen gann ganz ganze geil gerne ging
    gnen grau gross gsten gter gute guten guter h habe hast hat hatte he her heute hier hin hlug hm hnen hob hon hrieb
    hseln hsten hster hätte iale ichts iecht ief iell ielle iente iese iess iesse ig ige igen iger ihn ihr ihre ihrer
    imale inen iner ingen inst inste ir ird its itten ive iven iver jagen jede kalt kam kamen kann kaum kein kenne
    klar krank kter kurz laden lafen lagen lang lange lb leer leich lft lhaft lieb liest litt llein lnd lnde lnen
    loren los lose losen loss lsten ltest lugen lzen mag mal malt mand mehr mein mit mmen muss nach napp naus ndeln
    nders ndte nell nelle neuer nf nhaft nicht nken nnen nnst nsten ntan nter nterm nug nun nur obern oder oft ogen
    ohl ohne oll oller omme onale onst orgen oser osser otal parkt peln pft pften plant plett ppern pro putt pät päter
    püren rach rade ragen raten raun raus rdern reibe reit rekt rekte relle reute rft rhaft rlei rlor rnd rnde rnen
    roren rosse rugen rzeit rzer rück rüne sah sam same samen samer sames sass sehr sei seid sein seit sie sind so
    spart ssten still swert t tabel tags tale tark tatt te tens tets traf trat trug ttest tun twa tzen uell uft uften
    umm uns unser urde urze usser utage utze v viel viele volle vom von vor vorne wach wahr wahrt wann warz was wegs
    wei weil weise weit wer werde wie wies will wo zog zter zu zum zur änkte äre ärer ärts äss ölf ön önen öre ös öse
    östen über üde üft ün ür ürde ürzen
    """
)

GERMAN_CAPITAL_ENDINGS = _words(
    """
    aar ach ache acher aden ades afen ages ah ahlen ahnen ahres ahrt ainer air akt akte akten alt amt amtes anet angst
    anken ant anten arch arden arkt art arte arten arzt asche asen asie ast aste at ate aten ates av bchen beine bend
    bert bes bet bird blem bles bogen brief brück bären cen ces ct dchen dinen dt dte dten eamte ech echer echt ecken
    edarf een eere eeren ees eet eges eher eich eig eige eiger eisch ekt ekte ekten eles ent ente enten enter ept esie
    est ev exte fchen feder fes fisch ft ften gaben geist gen gh ght gles haber hacht hals har het hinen hiv hut häre
    ials icht ichte idas ien iene iener iere ierer ies iet iete ifen ihe iher ikt illen innen ipt irch iren irt irte
    isen iste it ite iten itut kante kar kauf kchen ken kes ket kete keten kmal koch koll kraut lar lauf lch lchen
    ldes leben leser let lfte liner list loch lsen lucht luft lut maler mar mben mchen mden men mes mist msen mut
    nacht nals nar nch nchen ndes ndort nen nende nh nist nkte nnes nsch nsen nst nste nut nzert näre obin oche ocher
    oden odes odie ofen ohren oiden oint ones ont oren ores orst ort orte orten ortes osen ost ot ote oten otiv otive
    ount out ov ower pchen pen pende pete ph phe phen phon pich polen rab rauen rche rchen rcher regen reste ret rges
    rich rinen rist river rnet roll rren rsch rsche rsen rucht röten rüst sar sden ses set sh sinen sisch sso stem
    sten tab taben tals tar tch tchen tcher teine th the then ther tich tist tren trend tsch tsche tsein tt tte tten
    tures tür uar uben uch uche ucher uden udes udie uet ugend uges uh uhe uhen ukt ukte ukten ulden ulen ult unkt
    unnen uren urst urt usch usche usen ust uste ute uten ven weine welt wen wende wert wesen weste wig wut xen xt yte
    zchen zen zene zenen zes zist zoll zucht äben äch äche ächen äden ädie äfte ähe ällen älte änden ärten ärzte äsche
    ässen äste ät äte äten ätzen öcher öcken öden öfen öhe öhren önig örden öte üche üchen ücher üchte ücken üden ühe
    ünden üren ürste üste üte üten
    """
)

GERMAN_LOWER_CASE_WORDS = _words(
    """
    a abends abhängen ableiten abschrecken absolut absolute absoluten abzuwarten aktuelle aktueller akute akuter all
    alle aller allesamt alt altern am an and anfangs angreifen anhand ans ansaugen anstecken anstelle anstrengen
    antiken arbeite arbeiten armer au auch aufdrücken aufgrund aufschlussreich aus ausbreiten ausdrücken auslöffeln
    ausräumen ausspricht ausstatten autonomen barfuss barocke bat baumeln beantworten bearbeiten bedanken
    bedeutendsten befahl befreien begabter begeistern beginnen begleiten behindern beider beige beiseite bekäme
    bemerken benachbarten bequeme bequemer bereiten beruhen berät berühmter beschwert besser bestand bestimmter
    bestrafen bestraft bestritt betonen betont betritt bevorzugen beweisen bewirken bezahlen beziffern bezweifle
    bitter blau blauer bleibe blies blind blonde blöd blöde bohren bot braune braunen breiten breiter bricht bringe
    brutal brüten bzw circa com cool cooler d da daheim danke darin dato dauern de decken defekt defekten del der
    derart desto deutsche di dicht dick dicke dicker dickes dienten dingfest direkten diverse diversen diverser doof
    dreien dreiste dreiviertel drin drinnen dritte drücken dumme dunkel dunkle dunkler durchaus durchs durften duzen
    dümmsten dünn dürften echt echter effizient effizienter egal eher ein eincremen einfacher eins einzeln einzelne
    einzelner einzuschätzen eiserne elf elften emotional empfahl empfehle eng enge engen enger enorm enorme entdecken
    entlasten entsandten entschied entspricht entstand er erfolgen erfolgreich ergaben ergreifen ergriff ergänzen
    erinnern erklärten erkranken erlag erlauben erleben erleichtern ermitteln ermöglicht ermöglichte erneute ernst
    ernsthaft erobert errang erreichte erschien erstatten ersten erster ertrage erwarte erwarten erwecken erweitern
    erwägen erzeugen esse euer eure euren eurer ewig exakt externe extra facto fahre fair fatal fehl feiern fein fern
    ferner fest fester fett fetten fing fit flach flache flacher flexibel for formell fortan freien freier freies
    fremd frühe frühstücken ft fühle fünften fürs füttern gaben galt ganzen ganzer ganzes geb gebe geheim geheime
    geheimen gelungen genauer generell geplanten gerecht geriet gering geringe geringer gern geschah geschneit
    gesprungen gestand gestern gesunde gesungen gesünder gewesen gewinnen gewiss gewisse gewisser gezwungen ggf gib
    ginge glatt glaub glaube glauben gratis greifen griff grob grosses grösser grösster grünen gäbe halbe halbes half
    halt hart harte harten harter hasse hatten heil heiser heiss heisse heisser hell helle herab heran herein heulen
    hex hilfreich hinein hinweg hinweisen hl hoffe hängen härter hätten hör ideal ideale illegal im immer in
    indirekten infolge infrage inne innen ins insgesamt intelligent interessant interne ja je jedermanns jung junge
    jungen junger jure jünger k kahl kaufe kg klare klein klettern klingeln klug km komm komplette kompletten
    konsequent korrekten krass kreuzen kurzen kurzes käme könne könntest kümmern lag langer las lass lasse lauten
    lauter lebe lecken lecker leere leeren lege leichte leichter leid leider leise leiser leisten leiten lese lieber
    liege lindern linke links locker lokal lokale lädt länger lüften m mach mache man manchen manuelle meckern mega
    meiste meisten meistern merken milde mithilfe mittels mittlerweile moderne moderner morgens mph möchtest mögen n
    nachts nachweisen nah nahmen nass ne nebenan nee nein nenne nett netter neutral nie nimm nimmer nix normale nähern
    nüchtern o ob of ok okay on orthodoxen oval p paar parallel parken per perfekt perfekte perfekten permanent
    pflücken piep planen platt plus populär pp prima privat private privaten präzise prügeln pusten quasi quer radikal
    ran recht rechts ref regelrecht reichte reif rein reiste reisten reiten retten riskant rot rote roten rufe rund
    rächen s sag sage sagen salopp sammeln sang sank satt sauber sauer saugen saure sauren schade scharfe schau
    schaust schied schien schlage schlapp schlau schlauer schlecht schlechter schlicht schlimm schlimmer schlimmsten
    schläft schmale schmaler schmecken schmerzhaft schmücken schneller schonen schreien schrie schräg schuf schwanger
    schwarze schwarzen schätze schätzen schöne schöner schütteln se seien seither senkrecht separat separate setze
    sexuelle sichern sichersten solch solchen solle sondern sozial sozusagen speichern sperren sprang spricht späten
    stabile stand starke starken starker starkes starren starten stecken steif steigern steil sticht stieg stolz
    stoppen streicheln streiten streng strikt stritt stumpf stärker such sur süss süsse tanken tanzen tapfer teuer
    teure teurer th tiefer tippen to tolle tot trafen trage trauen trieb trinke tritt trotz träge tu tue tust täte um
    ums und unfair ungefähr ungewiss unterdrücken unterlag up usw variabler verarbeiten verbergen verbessern
    verbreiten verdanken vereinbart vereinbarten verfolgen vergebens verhindern vermisse vermuten verringern verrät
    verschwand versichern verspricht verstand verstecken vertritt verweisen verändern veröffentlicht veröffentlichte
    vieler vieles vier voran vorbereiten vorheizen vorm vorn vors vorzubereiten vorzubeugen wahre wahrer warm warme
    warmen warte warten wartest wecken weich weisen weiss weisse weisser weisses weitaus weite weiten weiter welchen
    wen wider widmen wild wirf wirken wolle worum wuchs wundern wärmer x y zeige zudrücken zufolge zugrunde zunichte
    zurecht zustande zwang zweier zweite zweiter zähle ähneln älter ändern äussern öfter übel überleben übers
    überzeugen übrigens
    """
)

GERMAN_CAPITALIZED_WORDS = _words(
    """
    aachen abendessen abgeordnete abgeordneten abkommen absender absichten abwasch achsen adeligen adressen affen
    affäre aires airlines aktivist alben alexander allerwertesten alternative ampeln andacht angehörige angehörigen
    angeklagten angestellte angestellten anlagen anliegen ansichten antennen anwender anzeichen araber arabischen
    arbeitsweise arroganz artgenossen astronaut atem atheist athleten atlantische aufsehen auftritten ausreden
    ausscheiden ausserirdischen aussichten aussterben aviv backen balladen bangladesch bar bassist baustellen bauweise
    beamten bear bedenken beete beilagen beinen ben bender bengalen bereiche bereichen bernd beschwerden besen
    betroffenen beweise bienen big birnen blues blutes bogenschützen bohnen boten branche braten braut braves brig
    brocken bräuchen buches bucht budget buffet bullen böhm bühnen cannabis carlos caspar charakter charaktere charles
    chat chief chinesen christopher church colt command commander danielle danzig darknet darlehen dealer debüt
    demokraten demokratischen dessert diabetes dielen diensten dienstes dingen dolmetscher dornen drachen draht
    dreissigjährigen drogen drohne duell duft dönerspiess dünsten ebene ebenen eddie edgar ehe ehen ehren eiche
    einheimischen einklang einkommen einvernehmen einwanderer eisenach elbe elche elsass ende ender englisch erbsen
    erdbeben erlangen erliegen ermessen ernstes ernte erwachsene erwachsenen experte experten fach fahrradfahren
    fahrten farben fehlverhalten fernsehen festivals feuerlöscher filiale finisher first fische fischen fischer
    flammen flaschen fleischer flüssen folgejahren forscher fracht fragen fragezeichen freunden frieden früchten
    funken fächer gebieten gebüsch gefangenen gegend gemeinden gemisch genf genres gerste geschichten gesetzen geste
    gewehren gewissen gletscher gliedmassen glocken gottes gottlieb graben grössen gulasch guthaben göre göttingen
    haaren handvoll hanf haufen haupt haut helden herbst herrscher herzog hessen hinweise hits honig hunter häfen
    höhen höhlen hüfte individuen inhalte initiative insassen interessen irene jahren jahrhundert jahrhunderte
    jahrhunderten jahrtausenden jahrzehnt jahrzehnte jahrzehnten jerusalem jugendliche jugendlichen jugendlicher
    kalender kampagnen kanadas katzen kempten kennzeichen kirschen klassen kletterer knochen kollegen kommentaren
    komödie konflikte konflikten konföderierten kontrollen konzepte konzerte kopfkissen krach kragen krallen
    kriegsende kuchen kunden kurzgeschichten kärnten köche könige laden laternen lebensweise leerzeichen legende lehm
    lehren leiche leichen leine leipzig lesezeichen leuten lichts lieder ligen litauen live lokomotiven lt löten
    mandeln marathon markenzeichen meeres meilen menschen mercedes mitglieder mittagessen mittwoch modem mongolen
    mordes musicals mähdrescher mönche mühlen müllabfuhr nachbar nachkommen nachrichten nachtisch nacken narben neffen
    niederlagen niederlanden niedersachsen niger nische norden nordwesten normandie norwegen obdachlosen oberst obst
    offensive okres oliver olympischen orangen orden papst paradies passagieren perlen perspektive pfand pfannkuchen
    pferden pfützen philippinen pilzen piraten planeten pointe pollen portugiesen predigten preussen probanden proben
    projektes proteste protesten punkten punt quellen radar radieschen radiosender rauschen rebellen rechte reiches
    reihen reisenden reissverschlussverfahren relief republikanischen reutlingen riesen ringen rivalen robben rollen
    roosevelt ruhm ruinen runden runs russen rückwärtsfahren rüdiger sachen sachsen saint sam samen sandwich sankt
    satzzeichen scharfschützen scheiben schere schichten schinken schlacht schlagzeilen schlange schlangen schlitten
    schnupfen schreibtisch schreibweise schweden segen sehnsucht sekunden sender senf shenzhen silben sir sirene
    socken sohnes solingen sommersprossen sommerzeit sonden sorgen spanisch speichen speicher spender spitfires
    sprachen späher st staatsoberhaupt stadtrat stadtteils statuen steinen steiner sternen strassen strassenrennen
    streit stroh stufen stunden säugetieren söhnen sören südwesten taipeh tankstellen tante tassen ten teppiche
    thüringen tieren tiger tinte tisch titelverteidiger tonnen tracht tropfen tübingen uhren uhrzeit umfragen
    untergebenen unternehmen ursachen variante vasallen venedig verbrechen verdacht vereine vereinigten verfahren
    vergehen vergleich verhalten verhältnissen verletzten versprechen verteidiger vieh vierbeiner volt vorfahren
    vorgehen vorgesetzten vorhaben vorsitzende vorsitzenden vorsitzender wachen waffen wales wanderer wehrmacht
    weihnachten weimarer weise weissabgleich wellen welten werkstatt wesentlichen weser westen westfalen wiese winter
    wochen wucht wunden yacht zauberer zeche zeichen zeilen zeitgenossen zellen zelt ziegen zimt zähneputzen ägypten
    ähnlichem öfteren österreicher überlebender
    """
)
