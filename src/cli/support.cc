// moracle support: shows which schemes and variants each backend serves on an ideal machine.
#include "conformance/support.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <utility>

#include "base/printable.h"
#include "base/text.h"
#include "command.h"
#include "conformance/conformance.h"
#include "oracle/backend.h"
#include "terminal.h"

namespace moracle::cli {
namespace support_verb {
namespace {

using conformance::Variant;
using Rules = std::vector<std::string_view>;

struct Options {
  std::string backend, scheme, variant;
  bool json = false;
};

struct Cell {
  Scheme scheme;
  const Variant* variant;
  std::map<std::string_view, Rules> refused_by;  ///< rejecting rules by backend; empty: it serves
};

Error unknown(const char* option, const std::vector<std::string>& names, const std::string& name) {
  return {ErrorKind::kInvalidArgument, "", option, "one of " + join(names),
          quote(name) + " is unknown"};
}

// Names in `all` that the option selects: one, or all without the option.
Result<std::vector<std::string>> selected(const char* option, const std::string& wanted,
                                          const std::vector<std::string>& all) {
  if (wanted.empty()) return all;
  if (std::find(all.begin(), all.end(), wanted) == all.end()) return unknown(option, all, wanted);
  return std::vector<std::string>{wanted};
}

template <class List, class Name>
std::vector<std::string> names_of(const List& list, Name name) {
  std::vector<std::string> names;
  for (const auto& one : list) names.emplace_back(name(one));
  return names;
}

std::vector<Cell> cells(const std::vector<std::string>& schemes,
                        const std::vector<std::string>& variants) {
  std::vector<Cell> all;
  for (const std::string& scheme : schemes) {
    for (const std::string& name : variants) {
      const Variant* variant = conformance::find_variant(name);
      Request request = conformance::plain_request(*parse_scheme(scheme));
      variant->change(request);
      if (request.layer.routing.weight_on_input) request.layer.top_k = 1;
      all.push_back({request.layer.scheme, variant, conformance::objections(request)});
    }
  }
  return all;
}

Json to_json(const std::vector<Cell>& cells, const std::vector<std::string>& backends) {
  Json all = Json::array();
  for (const Cell& cell : cells) {
    for (const std::string& backend : backends) {
      all.push_back({{"backend", backend},
                     {"scheme", name(cell.scheme)},
                     {"variant", cell.variant->name},
                     {"refused_by", cell.refused_by.at(backend)}});
    }
  }
  return all;
}

// One line per backend and rule, for combinations that this rule rejects first.
void show(const std::vector<Cell>& cells, const std::vector<std::string>& backends,
          bool by_variant) {
  Table table;
  table.row({"backend", "serves", "refused by", by_variant ? "variants" : "schemes"});
  for (const std::string& backend : backends) {
    std::map<std::string_view, std::vector<std::string>> refused;
    size_t served = 0;
    for (const Cell& cell : cells) {
      const Rules& rules = cell.refused_by.at(backend);
      if (rules.empty())
        ++served;
      else
        refused[rules.front()].push_back(by_variant ? std::string(cell.variant->name)
                                                    : name(cell.scheme));
    }
    std::string lead = backend, count = str(served, " of ", cells.size());
    if (refused.empty()) table.row({lead, count});
    for (const auto& [rule, names] : refused) {
      table.row({std::exchange(lead, ""), std::exchange(count, ""), std::string(rule),
                 names.size() == cells.size() && names.size() > 1 ? "all" : join(names)});
    }
  }
  std::cout << table.text();
}

int run(const Options& options) {
  CLI_TRY(const std::vector<std::string> backends,
          selected("--backend", options.backend,
                   names_of(moracle::backends(), [](const Backend& row) { return row.name; })));
  CLI_TRY(const std::vector<std::string> schemes,
          selected("--scheme", options.scheme,
                   names_of(conformance::schemes(), [](const Scheme& one) { return name(one); })));
  // Text output lists the variants of one scheme, or the schemes of one variant.
  const bool by_variant = !options.scheme.empty() && options.variant.empty();
  const bool plain = options.variant.empty() && !by_variant && !options.json;
  CLI_TRY(const std::vector<std::string> variants,
          selected("--variant", plain ? "plain" : options.variant,
                   names_of(conformance::variants(), [](const Variant& one) { return one.name; })));
  const std::vector<Cell> all = cells(schemes, variants);
  if (options.json)
    print(to_json(all, backends));
  else
    show(all, backends, by_variant);
  return kDone;
}

}  // namespace
}  // namespace support_verb

void add_support(CLI::App& app, Work& chosen) {
  add_verb(
      app, "support", "Show which schemes and features each backend serves",
      [](CLI::App& verb) -> Work {
        auto options = std::make_shared<support_verb::Options>();
        verb.add_option("--backend", options->backend, "Only this backend");
        verb.add_option("--scheme", options->scheme, "Only this scheme, with each variant");
        verb.add_option("--variant", options->variant,
                        "Only this variant of a layer, as in moracle check; default: plain");
        verb.add_flag("--json", options->json, "Print one JSON document on stdout");
        return [options] { return support_verb::run(*options); };
      },
      chosen);
}

}  // namespace moracle::cli
