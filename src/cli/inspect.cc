// moracle inspect: shows the content of a checkpoint.
#include <iostream>

#include "base/printable.h"
#include "base/text.h"
#include "command.h"
#include "models/explain.h"
#include "models/not_read.h"
#include "models/stored_types.h"
#include "options/tokenizer_fact.h"
#include "plan_text.h"
#include "terminal.h"

namespace moracle::cli {
namespace inspect_verb {
namespace {

constexpr size_t kMostNames = 12;

// Collapse names that differ only in the layer number.
std::string some_of(const std::vector<std::string>& names) {
  if (names.size() <= kMostNames) return printable(join(names));
  const std::vector<std::string> first(names.begin(), names.begin() + kMostNames);
  return str(printable(join(first)), " and ", names.size() - kMostNames, " more");
}

void show(const NotRead& unread, bool gguf) {
  for (const NotRead::Entry& part : unread.tensors) {
    std::cout << "\n  not used: " << part.num_tensors << " tensors, " << megabytes(part.bytes)
              << " (" << printable(part.why) << "): " << some_of(part.names) << "\n";
  }
  for (const NotRead::Entry& part : unread.keys) {
    std::cout << "\n  not used: keys of " << (gguf ? "the metadata" : "config.json") << " ("
              << part.why << "): " << some_of(part.names) << "\n";
  }
}

// Beside the parts of a model in GGUF: which types the file stores.
void show(const std::vector<StoredTypes>& kinds) {
  if (kinds.empty()) return;
  StoredTypes all;
  Table table;
  table.row({"stored tensors", "types", "bits per weight", "size"});
  for (const StoredTypes& kind : kinds) {
    table.row({printable(kind.kind), text(kind), rounded(kind.bits_per_weight(), 2),
               megabytes(kind.bytes)});
    all.elements += kind.elements;
    all.bytes += kind.bytes;
  }
  table.row({"all", "", rounded(all.bits_per_weight(), 2), megabytes(all.bytes)});
  std::cout << "\n" << table.text({2, 3});
}

Json to_json(const std::vector<StoredTypes>& kinds) {
  Json all = Json::array();
  for (const StoredTypes& kind : kinds) {
    Json types = Json::object();
    for (const auto& [type, count] : kind.num_tensors) types[std::string(name(type))] = count;
    all.push_back({{"tensors", kind.kind},
                   {"types", types},
                   {"bits_per_weight", kind.bits_per_weight()},
                   {"bytes", kind.bytes}});
  }
  return all;
}

Json to_json(const std::vector<NotRead::Entry>& parts, bool tensors) {
  Json all = Json::array();
  for (const NotRead::Entry& part : parts) {
    Json one = {{"why", part.why}, {"names", part.names}};
    if (tensors) one.update({{"tensors", part.num_tensors}, {"bytes", part.bytes}});
    all.push_back(std::move(one));
  }
  return all;
}

void show(const Outline& outline, const TokenizerFact& tokenizer, const Checkpoint& checkpoint) {
  std::cout << bold(checkpoint.folder()) << "\n";
  Table facts;
  facts.row({"architecture", outline.architecture});
  facts.row({"producer", outline.producer});
  std::string sizes = str(outline.num_layers, ", hidden size ", outline.hidden_size);
  if (outline.vocab_size > 0)
    sizes += str(", vocabulary ", outline.vocab_size, ", context ", outline.max_context);
  facts.row({"layers", sizes});
  if (outline.num_experts > 0) {
    facts.row({"experts", str(outline.num_experts, " per layer, top-", outline.top_k,
                              ", intermediate size ", outline.intermediate_size)});
    facts.row({"routing", name(outline.routing)});
  }
  facts.row({"tensors", megabytes(outline.bytes)});
  facts.row({"tokenizer", printable(tokenizer.text())});
  std::cout << facts.text() << "\n";
  Table parts;
  parts.row({"part", "layers", "scheme", "tensors", "size"});
  for (const Outline::Part& part : outline.parts) {
    parts.row({part.what, ranges(part.layers), part.scheme, std::to_string(part.num_tensors),
               megabytes(part.bytes)});
  }
  std::cout << parts.text({3, 4});
  std::vector<std::string> plain;
  for (const Outline::Part& part : outline.parts) {
    if (!part.quantized) plain.push_back(part.what);
  }
  if (outline.not_runnable.empty()) {
    std::cout << "\n  not quantized: " << printable(join(plain)) << "\n";
  } else {
    std::cout << "\n  only the experts of this model can be used: " << outline.not_runnable << "\n";
  }
  std::cout << not_used_text(checkpoint);
}

Json to_json(const Outline& outline, const TokenizerFact& tokenizer, const Checkpoint& checkpoint,
             const NotRead& unread) {
  Json parts = Json::array();
  for (const Outline::Part& part : outline.parts) {
    parts.push_back({{"part", part.what},
                     {"layers", part.layers},
                     {"scheme", part.scheme},
                     {"quantized", part.quantized},
                     {"tensors", part.num_tensors},
                     {"bytes", part.bytes}});
  }
  return {
      {"architecture", outline.architecture},
      {"producer", outline.producer},
      {"num_layers", outline.num_layers},
      {"hidden_size", outline.hidden_size},
      {"vocab_size", outline.vocab_size},
      {"max_context", outline.max_context},
      {"num_experts", outline.num_experts},
      {"top_k", outline.top_k},
      {"intermediate_size", outline.intermediate_size},
      {"routing", outline.num_experts > 0 ? Json(name(outline.routing)) : Json(nullptr)},
      {"bytes", outline.bytes},
      {"parts", parts},
      {"stored_types", to_json(stored_types(checkpoint))},
      {"tokenizer", tokenizer.json()},
      {"not_used", checkpoint.not_used()},
      {"unread_keys", to_json(unread.keys, false)},
      {"unread_tensors", to_json(unread.tensors, true)},
      {"not_runnable", outline.not_runnable.empty() ? Json(nullptr) : Json(outline.not_runnable)}};
}

}  // namespace
}  // namespace inspect_verb

void add_inspect(CLI::App& app, Work& chosen) {
  add_verb(
      app, "inspect", "Show the contents of a checkpoint: parts, schemes, sizes",
      [](CLI::App& verb) -> Work {
        auto folder = std::make_shared<std::string>();
        auto json = std::make_shared<bool>(false);
        verb.add_option("MODEL", *folder, "Folder of the checkpoint, or a GGUF file")->required();
        verb.add_flag("--json", *json, "Print one JSON document on stdout");
        return [folder, json]() -> int {
          CLI_TRY(const Checkpoint checkpoint, Checkpoint::open(*folder));
          const Result<Description> described = describe(checkpoint);
          CLI_TRY(const Outline result,
                  described ? outline(checkpoint, *described) : outline(checkpoint));
          const NotRead unread = not_read(checkpoint, described ? &*described : nullptr);
          const TokenizerFact tokenizer = TokenizerFact::of(*folder);
          if (*json) {
            print(inspect_verb::to_json(result, tokenizer, checkpoint, unread));
          } else {
            inspect_verb::show(result, tokenizer, checkpoint);
            inspect_verb::show(stored_types(checkpoint));
            inspect_verb::show(unread, checkpoint.producer() == "gguf");
          }
          return kDone;
        };
      },
      chosen);
}

}  // namespace moracle::cli
