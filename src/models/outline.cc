// Outlines the content of a checkpoint, part by part, for `inspect`.
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/explain.h"
#include "models/modules.h"
#include "moracle/model.h"

namespace moracle {
namespace {

class Collector {
 public:
  explicit Collector(std::vector<Outline::Part>& parts) : parts_(parts) {}

  void add(const std::string& what, std::optional<int64_t> layer, const DescribedMatrix& matrix) {
    // Experts stored in one tensor name it once each; count it once.
    const std::vector<std::string> names = matrix.tensors();
    std::set<std::string> distinct(names.begin(), names.end());
    // Shares of one tensor are matrices of their own.
    std::erase_if(distinct, [this](const std::string& name) { return !seen_.insert(name).second; });
    add(what, layer, name(matrix.scheme()), matrix.scheme().weight.quantized(),
        static_cast<int64_t>(distinct.size()), matrix.source_bytes());
  }
  void add(const std::string& what, std::optional<int64_t> layer, std::string scheme,
           bool quantized, int64_t num_tensors, int64_t bytes) {
    Outline::Part* part = nullptr;
    for (Outline::Part& p : parts_) {
      if (p.what == what && p.scheme == scheme) part = &p;
    }
    if (part == nullptr) {
      parts_.push_back({what, {}, std::move(scheme), quantized, 0, 0});
      part = &parts_.back();
    }
    if (layer && (part->layers.empty() || part->layers.back() != *layer))
      part->layers.push_back(*layer);
    part->num_tensors += num_tensors;
    part->bytes += bytes;
  }

 private:
  std::vector<Outline::Part>& parts_;
  std::set<std::string> seen_;
};

Outline begin(const Checkpoint& checkpoint) {
  Outline outline;
  outline.architecture = checkpoint.architecture();
  outline.producer = checkpoint.producer();
  outline.num_layers = checkpoint.num_layers();
  outline.bytes = checkpoint.total_bytes();
  return outline;
}

// Adds each visited module and its bytes.
struct Visitor {
  Collector& parts;
  Outline& outline;
  bool tied = false;
  int64_t accounted = 0;

  Status operator()(const ModuleLabel& label, const DescribedMatrix& matrix) {
    if (label.part == "output" && tied) return {};  // the embedding
    parts.add(label.part, label.layer, matrix);
    accounted += matrix.source_bytes();
    return {};
  }
  Status operator()(const ModuleLabel& label, const DescribedWeights& experts) {
    parts.add(label.part, label.layer, experts.w13);
    parts.add(label.part, label.layer, experts.w2);
    accounted += experts.w13.source_bytes() + experts.w2.source_bytes();
    if (experts.spec.num_experts == 1) return {};
    outline.num_experts = experts.spec.num_experts;
    outline.top_k = experts.spec.top_k;
    outline.intermediate_size = experts.spec.intermediate_size;
    outline.routing = experts.spec.routing;
    return {};
  }
};

// Adds the remaining tensors as one part.
void add_rest(Outline& outline, Collector& parts, const Checkpoint& checkpoint,
              const std::string& what, const char* scheme, int64_t accounted) {
  int64_t others = static_cast<int64_t>(checkpoint.state().tensors.all().size());
  for (const Outline::Part& part : outline.parts) others -= part.num_tensors;
  parts.add(what, {}, scheme, false, others, outline.bytes - accounted);
}

std::string vectors(const Description& description) {
  std::set<std::string> also;
  for (const LayerDescription& layer : description.layers) {
    const auto* grouped = std::get_if<GroupedQueryDescription>(&layer.attention);
    if (grouped != nullptr && !grouped->sinks.empty()) also.insert("sinks");
    if (std::holds_alternative<GatedDeltaDescription>(layer.attention) ||
        std::holds_alternative<KimiDeltaDescription>(layer.attention))
      also.insert("convolutions, decays");
    if (std::holds_alternative<ShortConvolutionDescription>(layer.attention))
      also.insert("convolutions");
    if (std::holds_alternative<Mamba2Description>(layer.attention))
      also.insert("convolutions, decays");
    if (std::holds_alternative<CompressedDescription>(layer.attention))
      also.insert("sinks, biases of compressors");
    if (!layer.attention_hyper.base.empty()) also.insert("hyper-connections");
    if (layer.ngrams) also.insert("convolutions, hashes of n-grams");
    if (layer.router && !layer.router->by_token.empty()) also.insert("experts of token ids");
    if (layer.router && !layer.router->correction_bias.empty()) also.insert("correction biases");
  }
  return also.empty() ? "norms" : "norms, " + join(also);
}

// Expert names are alike across architectures, so experts can be described even if the rest cannot.
Result<Outline> outline_experts(const Checkpoint& checkpoint, const Error& why) {
  Outline outline = begin(checkpoint);
  outline.not_runnable = why.to_string();
  Collector parts(outline.parts);
  Visitor visitor{parts, outline};
  for (int64_t layer : checkpoint.moe_layers()) {
    MORACLE_TRY(const DescribedWeights experts, checkpoint.moe_layer(layer));
    MORACLE_CHECK(visitor({"experts", "", layer}, experts));
    outline.hidden_size = experts.spec.hidden_size;
  }
  add_rest(outline, parts, checkpoint, "everything else", "not described", visitor.accounted);
  return outline;
}

}  // namespace

Result<Outline> outline(const Checkpoint& checkpoint) {
  const Result<Description> described = describe(checkpoint);
  if (!described) {
    if (described.error().kind != ErrorKind::kUnsupported || checkpoint.moe_layers().empty())
      return described.error();
    Result<Outline> experts = outline_experts(checkpoint, described.error());
    if (!experts) return described.error();  // says why the experts cannot be used either
    return experts;
  }
  return outline(checkpoint, *described);
}

Result<Outline> outline(const Checkpoint& checkpoint, const Description& description) {
  Outline outline = begin(checkpoint);
  outline.hidden_size = description.spec.hidden_size;
  outline.vocab_size = description.spec.vocab_size;
  outline.max_context = description.spec.max_context;

  Collector parts(outline.parts);
  const TensorView* const table =
      checkpoint.state().tensors.find(description.embedding.tensors().front());
  const int64_t table_bytes = description.embedding.source_bytes();
  parts.add(description.tied ? "embedding (tied to the output)" : "embedding", {},
            std::string(name(table->dtype)), false, 1, table_bytes);
  Visitor visitor{parts, outline, description.tied, table_bytes};
  MORACLE_CHECK(visit_modules(description, visitor));
  int64_t number = 0;
  for (const LayerDescription& layer : description.layers) {
    const int64_t index = number++;
    if (!layer.ngrams) continue;
    parts.add("n-grams table", index, layer.ngrams->table);
    visitor.accounted += layer.ngrams->table.source_bytes();
  }
  for (const IgnoredTensors& ignored : description.ignored) {
    parts.add(ignored.what, {}, "not read", false, ignored.num_tensors, ignored.bytes);
    visitor.accounted += ignored.bytes;
  }
  // Every tensor is claimed, so the rest are the norms, sinks and correction biases.
  add_rest(outline, parts, checkpoint, vectors(description), "float", visitor.accounted);
  return outline;
}

}  // namespace moracle
