// Experts in memory: sizes, expert map, and the order of rows.
#include <numeric>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/memory/stored_matrix.h"
#include "quant/canonical.h"

namespace moracle {

Result<Packing> parse_packing(std::string_view text) {
  if (text == "rows") return Packing::kRows;
  if (text == "gptq") return Packing::kGptq;
  if (text == "gptq_v2") return Packing::kGptqV2;
  if (text == "awq") return Packing::kAwq;
  return Error{ErrorKind::kInvalidArgument, "", "packing", "rows, gptq, gptq_v2 or awq",
               str("it is '", text, "'")};
}

namespace {

// Rows of gate and up that alternate become gate, then up. Each row then needs its own scales.
CanonicalMatrix gate_then_up(CanonicalMatrix matrix) {
  expand_scale_rows(matrix);
  deinterleave_rows(matrix);
  return matrix;
}

DescribedMatrix::Source stored_source(const std::shared_ptr<const MemoryMatrix>& matrix,
                                      int64_t local, bool interleaved) {
  DescribedMatrix::Source source;
  source.n = matrix->shape().n;
  source.source_bytes = matrix->expert_bytes();
  source.read = [matrix, local, interleaved](ThreadPool& pool) -> Result<CanonicalMatrix> {
    if (local < 0) {
      return Error{ErrorKind::kInvalidArgument, "", "expert_map", "an expert of this rank",
                   "another rank holds it"};
    }
    MORACLE_TRY(CanonicalMatrix read, matrix->read(local, pool));
    return interleaved ? gate_then_up(std::move(read)) : std::move(read);
  };
  return source;
}

Result<DescribedMatrix> stored_matrix(MemoryMatrix&& opened, const StoredExperts& stored,
                                      const Scheme& scheme, bool interleaved) {
  const auto matrix = std::make_shared<const MemoryMatrix>(std::move(opened));
  MatrixShape shape = matrix->shape();
  if (interleaved && shape.key.quantized()) shape.key.group.rows = 1;
  MORACLE_TRY(const std::vector<float> local_scales, matrix->input_scales());
  std::vector<std::vector<DescribedMatrix::Source>> sources;
  std::vector<float> scales;
  for (const int32_t local : stored.expert_map) {
    sources.emplace_back().push_back(stored_source(matrix, local, interleaved));
    if (!local_scales.empty()) scales.push_back(local < 0 ? 1 : local_scales[local]);
  }
  DescribedMatrix described(shape, scheme, std::move(sources), stored.owner);
  described.set_input_scales(std::move(scales));
  return described;
}

// Without a map the tensors hold every expert.
Status complete_map(StoredExperts& stored) {
  const auto experts = static_cast<int32_t>(stored.w13.weight.shape[0]);
  std::vector<int32_t>& map = stored.expert_map;
  for (size_t e = 0; e < map.size(); ++e) {
    if (map[e] >= -1 && map[e] < experts) continue;
    return Error{ErrorKind::kInvalidArgument, "", "expert_map", str("-1 to ", experts - 1),
                 str("expert ", e, " has ", map[e])};
  }
  if (!map.empty()) return {};
  map.resize(experts);
  std::iota(map.begin(), map.end(), 0);
  return {};
}

}  // namespace

Result<DescribedWeights> describe(StoredExperts stored, LayerSpec spec) {
  MORACLE_TRY(const int64_t w13_rows, rows_of(stored.w13, stored.packing));
  MORACLE_TRY(spec.hidden_size, rows_of(stored.w2, stored.packing));
  const int64_t halves = is_gated(spec.activation.function) ? 2 : 1;
  const NamedTensor w13_weight{stored.w13.name, stored.w13.weight, {}};
  const NamedTensor w2_weight{stored.w2.name, stored.w2.weight, {}};
  if (w13_rows % halves != 0) return w13_weight.wrong("as many rows of gate as of up");
  if (w2_weight.view.shape[0] != w13_weight.view.shape[0])
    return w2_weight.wrong(str(w13_weight.view.shape[0], " experts, as ", w13_weight.name));
  spec.intermediate_size = w13_rows / halves;
  MORACLE_CHECK(complete_map(stored));
  spec.num_experts = static_cast<int64_t>(stored.expert_map.size());
  MORACLE_TRY(MemoryMatrix w13, MemoryMatrix::open(stored.w13, stored.packing, spec.scheme,
                                                   w13_rows, spec.hidden_size, stored.read));
  MORACLE_TRY(MemoryMatrix w2,
              MemoryMatrix::open(stored.w2, stored.packing, spec.scheme, spec.hidden_size,
                                 spec.intermediate_size, stored.read));
  spec.group_index = w13.shape().group_index || w2.shape().group_index;
  spec.bias = w13.shape().bias || w2.shape().bias;
  const Scheme scheme = spec.scheme;
  const bool interleaved = stored.interleaved && halves == 2;
  MORACLE_TRY(DescribedMatrix first, stored_matrix(std::move(w13), stored, scheme, interleaved));
  MORACLE_TRY(DescribedMatrix second, stored_matrix(std::move(w2), stored, scheme, false));
  spec.set_matrices({first.shape(), second.shape()});
  return DescribedWeights{std::move(spec), std::move(first), std::move(second)};
}

}  // namespace moracle
