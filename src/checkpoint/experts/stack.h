// Linears with a common input, as one matrix of stacked rows: gate and up; q, k and v.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "checkpoint/producers/producer.h"
#include "checkpoint/state.h"

namespace moracle {

struct Stack {
  std::string first_module;
  MatrixShape shape;
  Scheme scheme;
  TensorData column_groups;
  float input_scale = 0;
  std::vector<DescribedMatrix::Source> sources;
};

/// The modules as the file stores them, checked for consistency. Integer weights that differ in
/// bits, groups or zero points are widened to a common scheme. Errors: a missing module; schemes
/// without a common one; different input sizes or column groups.
Result<Stack> describe_stack(const Checkpoint::State& state,
                             const std::vector<std::string>& modules);

/// Converts each source to the weight key of a common scheme when it is read (quant/widen.h).
void widen(std::vector<DescribedMatrix::Source>& sources, const QuantKey& key);

/// Blocks of rows cannot be stacked if one source ends inside a block. In this case blocks get as
/// many rows as divide every source, with the same values: 64 of 128 where gate and up have 2,880.
/// `shape` is the shape of the stacked sources.
void align_blocks(MatrixShape& shape, std::vector<DescribedMatrix::Source>& sources);

/// Expert e of `module`, a tensor that holds all experts: `shape` is [experts, rows, columns] as
/// config.json has them.
using FusedShape = std::array<int64_t, 3>;
Result<Stack> describe_fused(const Checkpoint::State& state, const ExpertNames& names,
                             const std::string& module, bool is_gate_up, int64_t e,
                             const FusedShape& shape);

/// Checks that both matrices of a layer read activations of one format; their weights may differ.
/// Errors (kUnsupported, about `down`): they do not.
Status check_activations(const Tensors& tensors, const std::string& gate,
                         const DescribedMatrix& w13, const std::string& down,
                         const DescribedMatrix& w2);

/// "int4-w4a16-g128 [256, 128] in act-order"
std::string show(const MatrixShape& shape, const Scheme& scheme);

}  // namespace moracle
