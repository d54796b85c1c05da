"""Recognises the parts of a URL that track a visitor or carry a session, by their names and forms.

The functions take a field of a canonical query, ``key=value``. The patterns search a path. A released rule never
changes, so a change to a name or a pattern here needs a rule with another name.
"""

from __future__ import annotations

import re
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# The parameters that Firefox, Brave, ClearURLs and AdGuard strip on every site, less what docs/rules.md lists.
_TRACKING_2 = """
utm_ad utm_adgroup utm_affiliate utm_brand utm_campaign utm_campaignid utm_channel utm_cid utm_content utm_creative
utm_creative_format utm_emcid utm_emmid utm_id utm_id_ utm_keyword utm_marketing_tactic utm_medium utm_name utm_place
utm_product utm_pubreferrer utm_reader utm_referrer utm_serial utm_session utm_siteid utm_social utm_social-type
utm_source utm_source_platform utm_supplier utm_swu utm_term utm_umguk utm_userid utm_viz_id
Echobox __hsfp __hssc __hstc __io_lv __twitter_impression _bhlid _branch_match_id _branch_referrer _clde _cldee _ga _gl
_hsenc _hsmi _io_session_id _kx _openstat _sgm_action _sgm_campaign _sgm_source _zucks_suid action_object_map
action_ref_map action_type_map adfrom adjust_adgroup adjust_campaign adjust_creative adjust_referrer adjust_tracker
adjust_tracker_limit admitad_uid aiad_clid asgtbndr at_recipient_id at_recipient_list awc bbeml bsft_aaid bsft_clkid
bsft_eid bsft_ek bsft_mid bsft_uid ceneo_spo ck_subscriber_id cm_cr cm_me cx_click cx_recsOrder cx_recsWidget dclid
dpg_campaign dpg_content dpg_medium dpg_source ebisAdID ef_id epik erid et_rid external_click_id famad_xuid
fb_action_ids fb_action_types fb_comment_id fb_ref fb_source fbclid gad_campaignid gad_source gbraid gclid gclsrc
gps_adid gs_l guccounter guce_referrer guce_referrer_sig h_sid h_slt hmb_campaign hmb_medium hmb_source hsCtaTracking
hsa_acc hsa_ad hsa_cam hsa_grp hsa_kw hsa_la hsa_mt hsa_net hsa_ol hsa_src hsa_tgt hsa_ver igsh igshid ir_adid
ir_campaignid ir_partnerid irclickid irgwc itm_campaign itm_content itm_medium itm_source itm_term li_fat_id mc_cid
mc_eid mc_tc mindbox-click-id mindbox-message-key mkt_tok ml_subscriber ml_subscriber_hash msclkid mtm_campaign mtm_cid
mtm_content mtm_group mtm_keyword mtm_medium mtm_placement mtm_source nx_source oft_c oft_ck oft_d oft_id oft_ids oft_k
oft_lk oft_sk oly_anon_id oly_enc_id oprtrack os_ehash otm_campaign otm_content otm_medium otm_source otm_term
pk_campaign pk_cid pk_medium pk_source pk_vid rb_clickid rtkcid s_cid s_kwcid spm srsltid ss_email_id sscid
tduid tracking_source ttclid twclid unicorn_click_id usqp vc_lpp vero_conv vero_id vgo_ee wbraid wickedid wt_mc wt_zmc
wtmc wtrid wtzmc xtor yclid ymclid ysclid zanpid
"""
TRACKING_2 = tuple(_TRACKING_2.split())
"""Parameters of ``tracking_2``, besides all that begin with ``cm_mmc``, and a long ``__s``."""


def _any_of(names: Iterable[str]) -> str:
    """Return a pattern of *names*, grouped by their first letters: that makes a search three times as fast."""
    groups = groupby(sorted(names), key=itemgetter(0))
    return "|".join(f"{first}(?:{'|'.join(name[1:] for name in group)})" for first, group in groups)


_AMP = "(?:amp%3B)*"  # of a link whose "&amp;" was escaped once too often

is_tracking_2 = re.compile(
    rf"{_AMP}(?:(?:{_any_of(TRACKING_2)}|cm_mmc[^=]*)(?:=.*)?|__s=[0-9A-Za-z]{{6,}})", re.DOTALL
).fullmatch

_OWN_NAMES = "phpsessid|cgisessid|oscsid|xtcsid|zenid"
_SHARED_NAMES = "sessionid|session_id|sessid|sid"
# Ids of records have these names, too: digits only, 24 hexadecimal digits (MongoDB), or capitals (ULID). So a session
# id must have a digit and either 26 characters with a lower-case letter, or 32 hexadecimal digits in capitals, or more.
_RANDOM = r"(?=[^=]*[0-9])(?:(?=[^=]*[a-z])[0-9A-Za-z]{26,}|(?=[^=]*[A-F])[0-9A-F]{32,})"
# Tokens of one visit: of forms in Moodle and WordPress, and of the search that led to a page in Koha and Shopify
_OF_A_VISIT = (
    r"sesskey=[0-9A-Za-z]{10}|_wpnonce=[0-9a-f]{10}|searchid=scs_[0-9_]+|query_desc=[^=]*|_pos=[0-9]+|_sid=[0-9a-f]{9}"
    r"|_ss=[a-z]|pr_(?:prod_strat|rec_id|rec_pid|ref_pid|seq)=[^=]*"
)
is_session_2 = re.compile(
    rf"{_AMP}(?:(?i:_?jsessionid)=[^=]{{10,}}|(?i:{_OWN_NAMES}|aspsessionid[a-z]{{8}})=(?:[0-9A-Za-z\-]|%2C){{22,}}"
    rf"|(?i:{_SHARED_NAMES})={_RANDOM}|(?i:s=[0-9a-f]{{32}})|{_OF_A_VISIT})"
).fullmatch
# ColdFusion: a short number and a token, always together. A cfid alone may be a record's.
has_coldfusion_token = re.compile(rf"[?&]{_AMP}(?i:cftoken)=[0-9A-Za-z\-]{{8,}}(?=&|\Z)").search
is_coldfusion = re.compile(rf"{_AMP}(?i:cfid|cftoken)=[0-9A-Za-z\-]+").fullmatch
# The servlet specification reserves the name, so the value may have any form: Jetty's are short, Tomcat's name a node.
# SAP writes its sessions in the same way.
JSESSIONID_2 = re.compile(r";(?:jsessionid|sap-ext-sid)=[^/?#;]+", re.IGNORECASE)
# ASP.NET without cookies: /(S(lit3py55t21z5v55vlm25s55))/orders.aspx, also with other tickets beside the session. Also
# as in ASP.NET 1: /(lit3py55t21z5v55vlm25s55)/orders.aspx
ASP_NET_2 = re.compile(
    r"/\((?:(?=[a-z]*[0-5])[a-z0-5]{24}|"
    r"(?:[AX]\([0-9A-Za-z_\-]+\))?S\([0-9a-z]{24}\)(?:F\([0-9A-Za-z_\-]+\))?)\)(?=/|\Z)"
)

find_noise = re.compile(
    rf"[?&]{_AMP}(?:{_any_of({'__s=', 'cm_mmc', *TRACKING_2})}"
    r"|sesskey=|_wpnonce=|searchid=|query_desc=|_pos=|_sid=|_ss=|pr_"
    rf"|(?i:s=|cftoken|_?jsessionid|aspsessionid|{_OWN_NAMES}|{_SHARED_NAMES}))"
).search
"""Find a parameter that one of these rules may drop. It may find others, too, and misses none."""
