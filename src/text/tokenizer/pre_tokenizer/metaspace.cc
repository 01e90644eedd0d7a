#include "text/tokenizer/pre_tokenizer/metaspace.h"

#include "base/try.h"
#include "text/tokenizer/utf8.h"

namespace moracle {

Result<MetaspaceOptions> MetaspaceOptions::parse(const JsonField& field) {
  MetaspaceOptions options;
  MORACLE_TRY(options.mark, field["replacement"].text());
  if (options.mark.empty() || first_char(options.mark).length != options.mark.size())
    return field["replacement"].bad("one character");
  MORACLE_TRY(options.split, field["split"].flag_or(true));
  const JsonField scheme = field["prepend_scheme"];
  std::string prepend = "always";
  if (!scheme.is_null()) {
    MORACLE_TRY(prepend, scheme.text());
  }
  if (prepend != "always" && prepend != "first" && prepend != "never")
    return scheme.bad("always, first or never");
  options.prepend = prepend == "always"  ? Prepend::kAlways
                    : prepend == "first" ? Prepend::kFirst
                                         : Prepend::kNever;
  MORACLE_TRY(const bool add,
              field["add_prefix_space"].flag_or(options.prepend != Prepend::kNever));
  if (!add && options.prepend != Prepend::kNever)
    return field["add_prefix_space"].bad("true, because prepend_scheme is " + prepend);
  return options;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (;;) {
    const size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

}  // namespace moracle
