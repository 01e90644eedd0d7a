// The rules: each compares one column of a row with the request and the machine. docs/oracle.md
// says for each what a user can do about it.
#include "oracle/rules.h"

#include <algorithm>

#include "base/text.h"
#include "layout/layout.h"
#include "quant/activation.h"

namespace moracle {
namespace {

using Objection = std::optional<Reason>;

Objection object(std::string need, std::string have) {
  return Reason{"", std::move(need), std::move(have)};
}

std::string dtype_names(std::span<const DType> types) {
  std::vector<std::string_view> texts;
  for (DType type : types) texts.push_back(name(type));
  return join(texts, " or ");
}

Objection refuse_requested(const Backend& b, const Request& r, const Machine&) {
  if (r.backend == "auto" || r.backend == b.name) return {};
  return object(str("backend '", r.backend, "', asked for by name"), str("this is '", b.name, "'"));
}

Objection refuse_platform(const Backend& b, const Request& r, const Machine&) {
  if (!r.platform || *r.platform == b.platform) return {};
  return object(str("a backend for device ", name(*r.platform)),
                str("it runs on ", name(b.platform)));
}

Objection refuse_build(const Backend& b, const Request&, const Machine&) {
  if (b.make != nullptr) return {};
  return object("a build with this backend", "this build was made without it");
}

Objection refuse_device(const Backend& b, const Request&, const Machine& m) {
  if (b.platform == Platform::kCpu) return {};
  const bool there = std::any_of(m.gpus.begin(), m.gpus.end(),
                                 [&](const GpuInfo& gpu) { return gpu.platform == b.platform; });
  if (there) return {};
  return object(str("a device that speaks ", name(b.platform)), "this machine has none");
}

Objection refuse_isa(const Backend& b, const Request&, const Machine& m) {
  const Isa lacking = missing(b.isa, m.cpu.isa);
  if (lacking == Isa::kNone) return {};
  return object(names(lacking), "this CPU has " + names(m.cpu.isa));
}

Objection refuse_weights(const Backend& b, const Request& r, const Machine&) {
  const DType type = r.layer.scheme.weight.dtype;
  if (std::find(b.weights.begin(), b.weights.end(), type) != b.weights.end()) return {};
  return object(str("weights in ", dtype_names(b.weights)), str("the layer's are ", name(type)));
}

Objection refuse_activations(const Backend& b, const Request& r, const Machine&) {
  const auto& key = r.layer.scheme.activation;
  if (!key) return {};
  if (std::find(b.activations.begin(), b.activations.end(), key->dtype) != b.activations.end())
    return {};
  return object(str("activations in floating point",
                    b.activations.empty() ? "" : " or " + dtype_names(b.activations)),
                str("the scheme quantizes them to ", name(key->dtype)));
}

// The dtype is not all: which values share a scale, and when it is known, belong to the format.
Objection refuse_activation_scales(const Backend&, const Request& r, const Machine&) {
  const auto& key = r.layer.scheme.activation;
  if (!key || can_quantize(*key) || *key == kFp8StaticTensorSym) return {};
  return object("activations in int8 per token, fp8 per token, group or tensor (stored), or mxfp8",
                "the scheme is " + describe(r.layer.scheme));
}

Objection refuse_zero_points(const Backend& b, const Request& r, const Machine&) {
  if (b.zero_points || r.layer.scheme.weight.symmetric) return {};
  return object("symmetric weights", "the layer has zero points");
}

Objection refuse_act_order(const Backend& b, const Request& r, const Machine&) {
  if (b.group_index || !r.layer.group_index) return {};
  return object("groups of neighbouring columns", "the layer is in act-order (desc_act)");
}

Objection refuse_bias(const Backend& b, const Request& r, const Machine&) {
  if (b.bias || !r.layer.bias) return {};
  return object("a layer without biases", "the layer has biases");
}

Objection refuse_group_size(const Backend& b, const Request& r, const Machine&) {
  const int64_t size = r.layer.scheme.weight.group.cols;
  if (!r.layer.scheme.weight.quantized() || size == GroupShape::kAll ||
      size % b.group_multiple == 0) {
    return {};
  }
  return object(str("groups that are a multiple of ", b.group_multiple), str("groups of ", size));
}

Objection refuse_long_sums(const Backend& b, const Request& r, const Machine&) {
  if (b.max_integer_k == 0 || !r.layer.scheme.activation) return {};
  for (const MatrixShape& matrix : r.layer.matrices()) {
    if (matrix.k > b.max_integer_k) {
      return object(str("at most ", b.max_integer_k, " columns for exact integer sums"),
                    str("the layer has ", matrix.k));
    }
  }
  return {};
}

constexpr Rule kRules[] = {
    {"requested", refuse_requested},
    {"platform", refuse_platform},
    {"build", refuse_build},
    {"device", refuse_device},
    {"isa", refuse_isa},
    {"weights", refuse_weights},
    {"activations", refuse_activations},
    {"activation-scales", refuse_activation_scales},
    {"zero-points", refuse_zero_points},
    {"act-order", refuse_act_order},
    {"bias", refuse_bias},
    {"group-size", refuse_group_size},
    {"sum-length", refuse_long_sums},
};

}  // namespace

std::span<const Rule> rules() {
  return kRules;
}

}  // namespace moracle
