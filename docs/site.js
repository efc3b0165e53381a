// The views follow the theme of the page when one of these attributes changes; the theme sets another one.
const follow = () => (document.body.dataset.theme = document.body.dataset.mdColorScheme);
new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
follow();
