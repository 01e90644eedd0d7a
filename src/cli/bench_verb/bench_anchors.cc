#include "bench_verb/bench_anchors.h"

#include <algorithm>

#include "base/json/json_text.h"
#include "base/text.h"
#include "base/try.h"
#include "command.h"
#include "text_file.h"

namespace moracle::cli {
namespace {

struct Name {
  const char* theirs;
  const char* ours;
};
constexpr Name kShapes[] = {{"dsv3-ep8", "deepseek-v3-ep8"}};
constexpr Name kSchemes[] = {
    {"int8_w8a8_ch", "int8-w8a8"},
    {"fp8_w8a8_ch", "fp8-w8a8-channel"},
    {"fp8_w8a8_block", "fp8-w8a8-block128x128"},
    {"int4_w4a8int8_g128", "int4-w4a8-g128"},
};

template <size_t count>
std::string our_name(const Name (&names)[count], std::string theirs) {
  for (const Name& name : names) {
    if (theirs == name.theirs) return name.ours;
  }
  std::replace(theirs.begin(), theirs.end(), '_', '-');
  return theirs;
}

// Priority of vLLM's kernels on Hopper: DeepGEMM, vLLM's CUTLASS, Triton, Marlin. For block-scaled
// fp8 Triton comes first if all experts are local. Kernels that we tuned ourselves are not vLLM's
// choice.
int vllm_rank(const std::string& shape, const std::string& scheme, const std::string& impl) {
  if (!impl.starts_with("vllm-") || impl.find('+') != impl.npos) return -1;
  const bool triton = impl.starts_with("vllm-triton-0.24");
  const bool alone = shape.find("-ep") == shape.npos;
  if (triton && alone && scheme.find("-block") != scheme.npos) return 5;
  return impl.starts_with("vllm-deepgemm")  ? 4
         : impl.starts_with("vllm-cutlass") ? 3
         : triton                           ? 2
         : impl.starts_with("vllm-marlin")  ? 1
                                            : -1;
}

Error broken(const std::string& path, std::string place, std::string fact) {
  return {ErrorKind::kBadFile, path, std::move(place),
          "a list of {\"shape\", \"scheme\", \"impl\", \"M\", \"us_graph\"}", std::move(fact)};
}

}  // namespace

Result<Anchors> Anchors::read(const std::string& path) {
  MORACLE_TRY(const std::string content, read_text(path, "--anchors"));
  MORACLE_CHECK(check_json_text(content, path));
  const Json list = Json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return broken(path, "", "it is not a list");
  Anchors anchors;
  std::map<std::tuple<std::string, std::string, int64_t>, int> ranks;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& row = list[i];
    auto has = [&](const char* key, auto is) { return row.contains(key) && is(row[key]); };
    const auto text = [](const Json& value) { return value.is_string(); };
    const bool right = row.is_object() && has("shape", text) && has("scheme", text) &&
                       has("impl", text) &&
                       has("M", [](const Json& m) { return m.is_number_integer(); });
    if (!right || !row.contains("us_graph"))
      return broken(path, str("row ", i), "a field is missing or has another type");
    const Json& us = row["us_graph"];
    if (us.is_null()) continue;  // null: the kernel did not run
    if (!us.is_number() || !(us.get<double>() > 0))
      return broken(path, str("row ", i), "us_graph is not a number above 0");
    if (row["M"].get<double>() < 1) return broken(path, str("row ", i), "M is not above 0");
    const std::string shape = our_name(kShapes, row["shape"].get<std::string>());
    const std::string scheme = our_name(kSchemes, row["scheme"].get<std::string>());
    const std::tuple key{shape, scheme, row["M"].get<int64_t>()};
    const Anchor anchor{row["impl"].get<std::string>(), us.get<double>()};
    AnchorCell& cell = anchors.cells_.try_emplace(key, AnchorCell{anchor, {}}).first->second;
    if (anchor.us < cell.best_public.us) cell.best_public = anchor;
    const int rank = vllm_rank(shape, scheme, anchor.impl);
    if (rank < 0 || (cell.vllm && ranks[key] >= rank)) continue;
    cell.vllm = anchor;
    ranks[key] = rank;
  }
  return anchors;
}

const AnchorCell* Anchors::find(const std::string& shape, const std::string& scheme,
                                int64_t num_tokens) const {
  const auto found = cells_.find({shape, scheme, num_tokens});
  return found == cells_.end() ? nullptr : &found->second;
}

}  // namespace moracle::cli
