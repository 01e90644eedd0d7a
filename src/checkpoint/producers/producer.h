// A producer is a tool that writes quantized checkpoints. Its reader interprets the quantization
// config for a module, and converts the module's tensors to canonical form.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/tensors/tensors.h"
#include "moracle/checkpoint.h"

namespace moracle {

/// The matrix of one linear layer, described from the tensors in the file.
struct DescribedLinear {
  MatrixShape shape;
  Scheme scheme;
  DescribedMatrix::Source source;
  /// The tensor with the group of each column; no data: left to right. Matrices can be stacked only
  /// if these tensors are equal.
  TensorData column_groups;
  float input_scale = 0;  ///< stored activation scale (static schemes); 0: none
};

class Reader {
 public:
  virtual ~Reader() = default;
  /// True if the config excludes this module from quantization. It decides only where the file
  /// holds both forms of the module.
  virtual bool excludes(const std::string& module) const = 0;
  /// True if the file holds this module in the producer's quantized form.
  virtual bool stores(const Tensors& tensors, const std::string& module) const = 0;
  /// The tensor names of the quantized form, for the message about a missing module.
  virtual std::string expected(const std::string& module) const = 0;
  /// Checks every tensor of the module. Errors: a missing tensor, or another shape or dtype than
  /// required.
  virtual Result<DescribedLinear> describe(const Tensors& tensors,
                                           const std::string& module) const = 0;
  /// Describes expert e of a module whose tensors hold all experts in their first dimension.
  /// Errors: as describe; kUnsupported from producers that never write such tensors.
  virtual Result<DescribedLinear> describe_expert(const Tensors& tensors, const std::string& module,
                                                  int64_t e, int64_t num_experts) const;
  /// See Checkpoint::not_used.
  virtual std::vector<std::string> not_used() const { return {}; }
};

/// One row of the table of producers.
struct Producer {
  std::string_view name;  ///< the value of quant_method in the quantization config
  /// Errors: an unsupported variant of the method, by name.
  Result<std::unique_ptr<Reader>> (*open)(const Config& quantization);
  /// A file beside config.json that may hold the quantization config; empty: none. If it names no
  /// quant_method, the file belongs to this producer.
  std::string_view config_file = {};
  /// Other values of quant_method, in lower case with '-' between words.
  std::span<const std::string_view> also = {};

  /// Compares without case; '_' equals '-'.
  bool is(std::string_view method) const;
};

#define X(producer) extern const Producer producer;
#include "checkpoint/producers/producers.inc"
#undef X

/// Every producer, in the order of producers.inc.
std::span<const Producer* const> producers();

/// Describes a module in one tensor: `module`.weight as floats, or as blocks of GGUF, whose rows
/// are read in the form that integer_form names.
Result<DescribedLinear> describe_plain(const Tensors& tensors, const std::string& module);

/// The same, but blocks are read as stored: for tables whose rows are looked up.
Result<DescribedLinear> describe_plain_table(const Tensors& tensors, const std::string& module);

/// Describes expert e of the plain tensor `module`: [E, N, K], or [E, K, N] if `transposed`.
/// Biases are in `module`_bias.
Result<DescribedLinear> describe_plain_expert(const Tensors& tensors, const std::string& module,
                                              int64_t e, int64_t num_experts, bool transposed);

}  // namespace moracle
