"""What secrets of 200 kinds look like, as templates: a test fills them with chance.

`<a36>` stands for 36 letters and digits, `<l…>` for small letters and digits, `<u…>` for capitals
and digits, `<t…>` for letters of base 32, `<h…>` for hexadecimal digits, `<d…>` for digits, `<s…>`
for letters, `<w…>` for letters, digits, `_` and `-`, `<b…>` for base 64. Templates without a name
before them are known by their form alone. No template is a secret, so no scanner finds one here.
"""

from __future__ import annotations

import random
import re
import string

from closeloop.text import redaction

ALPHABETS = {
    "a": string.ascii_letters + string.digits,
    "l": string.ascii_lowercase + string.digits,
    "u": string.ascii_uppercase + string.digits,
    "t": string.ascii_uppercase + "234567",
    "h": "0123456789abcdef",
    "d": string.digits,
    "s": string.ascii_letters,
    "w": string.ascii_letters + string.digits + "_-",
    "b": string.ascii_letters + string.digits + "+/",
}

FORMS = """
1password-secret-key A3-<u6>-<u11>-<u5>-<u5>-<u5>
1password-secret-key-short A3-<u6>-<u6>-<u5>-<u5>-<u5>-<u5>
1password-service-account ops_eyJ<b250>
adobe-client-secret p8e-<l32>
age-secret-key AGE-SECRET-KEY-1<u58>
alibaba-access-key LTAI<a20>
anthropic-admin-key sk-ant-admin01-<w93>AA
anthropic-api-key sk-ant-api03-<w93>AA
artifactory-api-key AKCp<a69>
artifactory-reference-token cmVmd<a59>
atlassian-token ATATT3<w186>
authress-client sc_<l10>.<l5>.acc_<l16>.<l60>
authress-external ext_<l12>.<l4>.acc-<l12>.<l44>
aws-access-key AKIA<t16>
aws-session-key ASIA<t16>
aws-bedrock-long ABSK<b109>
aws-bedrock-short bedrock-api-key-<b60>
azure-client-secret <a3>8Q~<a34>
clickhouse-key 4b1d<a38>
clojars-token CLOJARS_<l60>
cloudflare-origin-key v1.0-<h24>-<h146>
databricks-token dapi<h32>
defined-networking-token dnkey-<l26>-<l52>
digitalocean-oauth doo_v1_<h64>
digitalocean-personal dop_v1_<h64>
digitalocean-refresh dor_v1_<h64>
doppler-token dp.pt.<a43>
duffel-token duffel_live_<w43>
dynatrace-token dt0c01.<l24>.<l64>
easypost-token EZAK<a54>
easypost-test-token EZTK<a54>
facebook-page-token EAAM<a120>
figma-token figd_<w43>
flutterwave-encryption FLWSECK_TEST-<h12>
flutterwave-public FLWPUBK_TEST-<h32>-X
flutterwave-secret FLWSECK_TEST-<h32>-X
flyio-organisation fo1_<w43>
flyio-machine fm1r_<b120>
flyio-v2 fm2_<b120>
frameio-token fio-u-<w64>
github-app ghs_<a36>
github-fine-grained github_pat_<a82>
github-oauth gho_<a36>
github-personal ghp_<a36>
github-refresh ghr_<a36>
gitlab-job glcbt-<a4>_<a20>
gitlab-deploy gldt-<w20>
gitlab-feature-flag glffct-<w20>
gitlab-feed glft-<w20>
gitlab-incoming-mail glimt-<w25>
gitlab-kubernetes glagent-<w50>
gitlab-oauth gloas-<a64>
gitlab-personal glpat-<w20>
gitlab-personal-routable glpat-<w27>.<l2>.<l7>
gitlab-trigger glptt-<h40>
gitlab-runner-registration GR1348941<w20>
gitlab-runner glrt-<w20>
gitlab-scim glsoat-<w20>
gitlab-session _gitlab_session=<l32>
google-api-key AIza<w35>
google-oauth-secret GOCSPX-<w28>
grafana-api-key eyJrIjoi<a80>
grafana-cloud glc_<b60>
grafana-service-account glsa_<a32>_<h8>
groq-key gsk_<a52>
harness-personal pat.<w22>.<a24>.<a20>
harness-service sat.<w22>.<a24>.<a20>
hashicorp-terraform <a14>.atlasv1.<w64>
heroku-key HRKU-<w60>
huggingface-token hf_<s34>
huggingface-organisation api_org_<s34>
infracost-key ico-<a32>
intra42-secret s-s4t2ud-<h64>
intra42-secret-older s-s4t2af-<h64>
json-web-token eyJ<a24>.eyJ<a40>.<w43>
json-web-token-spaced ewog<a24>.ewog<a40>.<w43>
langsmith-key lsv2_pt_<h32>_<h10>
linear-key lin_api_<a40>
maxmind-key <a6>_<a29>_mmk
netlify-token nfp_<a36>
new-relic-browser NRJS-<h19>
new-relic-insert NRII-<l32>
new-relic-user NRAK-<u27>
new-relic-user-small NRAK-<l27>
notion-token ntn_<d11><a35>
npm-token npm_<a36>
nvidia-key nvapi-<w64>
octopus-key API-<u26>
openai-project sk-proj-<w74>T3BlbkFJ<w74>
openai-legacy sk-<a20>T3BlbkFJ<a20>
openrouter-key sk-or-v1-<h64>
openshift-token sha256~<w43>
perplexity-key pplx-<a48>
planetscale-oauth pscale_oauth_<w40>
planetscale-password pscale_pw_<w40>
planetscale-token pscale_tkn_<w40>
postman-key PMAK-<h24>-<h34>
prefect-token pnu_<a36>
pulumi-token pul-<h40>
pypi-token pypi-AgEIcHlwaS5vcmc<w60>
readme-token rdme_<l70>
replicate-token r8_<a37>
rubygems-token rubygems_<h48>
scalingo-token tk-us-<w48>
sendgrid-token SG.<w22>.<w43>
sendinblue-token xkeysib-<h64>-<a16>
sentry-organisation sntrys_<b120>
sentry-user sntryu_<h64>
settlemint-application sm_aat_<a16>
settlemint-personal sm_pat_<a16>
settlemint-service sm_sat_<a16>
shippo-token shippo_live_<h40>
shopify-access shpat_<h32>
shopify-custom shpca_<h32>
shopify-private shppa_<h32>
shopify-shared shpss_<h32>
slack-app xapp-1-<u11>-<d13>-<h64>
slack-bot xoxb-<d12>-<d12>-<a24>
slack-configuration xoxe.xoxp-1-<u163>
slack-configuration-refresh xoxe-1-<u146>
slack-legacy-bot xoxb-<d12>-<a24>
slack-legacy-token xoxs-<d11>-<d11>-<d11>-<h32>
slack-workspace xoxa-2-<a16>
slack-user xoxp-<d12>-<d12>-<d12>-<a32>
slack-webhook https://hooks.slack.com/services/T<u10>/B<u10>/<a24>
sourcegraph-token sgp_<h16>_<h40>
square-access EAAAE<w59>
square-access-short EAAAZ9<w38>
square-application sq0atp-<w22>
square-secret sq0csp-<w43>
stripe-live sk_live_<a24>
stripe-restricted rk_live_<a24>
stripe-short sk_test_<a14>
supabase-token sbp_<h40>
tailscale-key tskey-auth-<a12>-<a32>
tavily-key tvly-<a32>
telegram-bot <d10>:AA<w33>
twilio-key SK<h32>
typeform-token tfp_<w59>
vault-batch hvb.<w138>
vault-service hvs.<w90>
xai-key xai-<a80>
yandex-key AQVN<w36>
"""

NAMED = """
adafruit <l32>
adobe <h32>
airtable <l17>
airtable pat<a14>.<h64>
algolia <l32>
alibaba <l30>
asana <d16>
asana_client <l32>
atlassian <l20><h4>
beamer b_<l44>
bitbucket <l32>
bitbucket_client <w64>
bittrex <l32>
cloudflare <l40>
cloudflare_global <h37>
codecov <l32>
cohere <a40>
coinbase <w64>
confluence <l20><h4>
confluent <l16>
confluent_secret <l64>
contentful <w43>
datadog <l40>
discord <h64>
discord_client <w32>
droneci <l32>
dropbox <l15>
dropbox_long <l11>AAAAAAAAAA<w43>
dropbox_short sl.<w135>
etsy <l24>
facebook <h32>
facebook <d16>|<w27>
fastly <w32>
finicity <h32>
finicity_client <l20>
finnhub <l20>
flickr <l32>
freshbooks <l64>
gitter <w40>
gocardless live_<w40>
heroku <h8>-<h4>-<h4>-<h4>-<h12>
hubspot <h8>-<h4>-<h4>-<h4>-<h12>
instagram <l32>
intercom <w60>
jfrog <l73>
jira <l20><h4>
kraken <b80>
kucoin <h24>
kucoin_secret <h8>-<h4>-<h4>-<h4>-<h12>
launchdarkly <w40>
linear_client <h32>
linkedin <l16>
linked-in <l14>
lob live_<h35>
lob_publishable live_pub_<h31>
looker <l20>
looker_client <l24>
mailchimp <h32>-us20
mailgun key-<h32>
mailgun_signing <h32>-<h8>-<h8>
mapbox pk.<l60>.<l22>
mattermost <l26>
meraki <h40>
messagebird <l25>
netlify <w43>
newrelic <l64>
nytimes <w32>
okta 00<w40>
plaid <l30>
plaid_access access-sandbox-<h8>-<h4>-<h4>-<h4>-<h12>
private_ai <l32>
rapidapi <w50>
sendbird <h40>
sentry <h64>
snyk <h8>-<h4>-<h4>-<h4>-<h12>
sonar squ_<h40>
sourcegraph <h40>
squarespace <h8>-<h4>-<h4>-<h4>-<h12>
sumo <l64>
telegram <d9>:AA<w33>
travis <l22>
twitch <l30>
twitter <l25>
twitter_access <d17>-<a30>
twitter_secret <a50>
vault s.<a24>
yandex t1.<w40>.<w86>
yandex_aws YC<w38>
zendesk <l40>
"""


def fill(template: str, seed: object) -> str:
    """A made-up secret of this form, always the same for the same seed, and no placeholder."""
    for attempt in range(50):
        draw = random.Random(f"{template}/{seed}/{attempt}")
        drawn: list[str] = []

        def chosen(
            place: re.Match[str], draw: random.Random = draw, drawn: list[str] = drawn
        ) -> str:
            alphabet = ALPHABETS[place[1]]
            drawn.append("".join(draw.choice(alphabet) for _ in range(int(place[2]))))
            return drawn[-1]

        text = re.sub(r"<([a-z])(\d+)>", chosen, template)
        mixed = any(map(str.isdigit, text)) or "<s" in template
        if (
            mixed
            and redaction.shannon_entropy(text) > 2.9
            and not any(map(redaction.is_placeholder, drawn))
        ):
            return text
    raise AssertionError(f"no sample for {template}")
