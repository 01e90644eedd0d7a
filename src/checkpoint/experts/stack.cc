#include "checkpoint/experts/stack.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/module_tensors.h"
#include "quant/canonical.h"
#include "quant/widen.h"

namespace moracle {

std::string show(const MatrixShape& shape, const Scheme& scheme) {
  return str(name(scheme), " [", shape.n, ", ", shape.k, "]",
             shape.group_index ? " in act-order" : "", shape.bias ? " with bias" : "");
}

namespace {

// True if the module has the producer's quantized form. The tensors decide, because the lists of
// exclusions match names too loosely: "gate" excludes gate_proj. Only a file with floats under the
// name `floats`, too, leaves the choice to the config.
bool is_quantized(const Checkpoint::State& state, const std::string& module,
                  const std::string& floats) {
  if (!state.reader || !state.reader->stores(state.tensors, module)) return false;
  return !get_floats(state.tensors, floats) || !state.reader->excludes(module);
}

// The error of a module that is stored neither as floats nor in the reader's form. Lists its
// tensors.
Error not_stored(const Checkpoint::State& state, const std::string& module, const char* separator,
                 std::string need) {
  const auto& all = state.tensors.all();
  const std::string prefix = module + separator;
  std::vector<std::string> found;
  for (auto it = all.lower_bound(prefix); it != all.end() && it->first.starts_with(prefix); ++it)
    found.push_back(it->first.substr(module.size() + 1));
  Error error{ErrorKind::kBadFile, state.tensors.file_of(module + ".weight"),
              "module '" + module + "'", std::move(need), "the file has no such tensor"};
  if (found.empty() || state.gguf) return error;
  error.file = state.tensors.file_of(prefix + found[0]);
  error.fact = "it has " + join(found);
  if (state.reader) return error;
  error.need += ", or a quantization_config in config.json";
  error.fact += ", the form of a quantized checkpoint, and config.json says nothing about it";
  return error;
}

Result<DescribedLinear> describe(const Checkpoint::State& state, const std::string& module) {
  const Tensors& tensors = state.tensors;
  if (is_quantized(state, module, module + ".weight"))
    return state.reader->describe(tensors, module);
  if (tensors.find(module + ".weight") != nullptr) return describe_plain(tensors, module);
  const std::string expected = state.reader ? " or " + state.reader->expected(module) : "";
  return not_stored(state, module, ".", tensors.shown(module + ".weight") + expected);
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  if (a.data == nullptr || b.data == nullptr) return a.data == b.data;
  return std::equal(a.data, a.data + a.num_bytes(), b.data, b.data + b.num_bytes());
}

// A module for messages, under the name that the files give to its weights.
std::string shown_module(const Checkpoint::State& state, const std::string& module) {
  constexpr std::string_view kWeight = ".weight";
  const std::string tensor = str(module, kWeight), shown = state.tensors.shown(tensor);
  const std::string stored = shown.substr(0, shown.find(' '));
  if (state.gguf || shown == tensor || !stored.ends_with(kWeight)) return module;
  return str(stored.substr(0, stored.size() - kWeight.size()), " (", module, ")");
}

// Adds one linear, which must match the previous ones.
Status push(const Checkpoint::State& state, Stack& stack, DescribedLinear linear,
            const std::string& module) {
  // safetensors allows tensors without elements. If one size is 0, the other may have any value.
  if (linear.shape.n == 0 || linear.shape.k == 0) {
    return state.tensors.wrong(linear.source.tensors[0], "at least one row and one column",
                               "the matrix is " + show(linear.shape, linear.scheme));
  }
  const bool first = stack.sources.empty();
  Stack own;
  own.shape = linear.shape;
  own.scheme = linear.scheme;
  own.sources.push_back(std::move(linear.source));
  own.sources[0].module = module;
  MatrixShape same = own.shape;
  same.n = stack.shape.n;
  same.group_index = stack.shape.group_index;  // column by column, below
  if (!first && (same != stack.shape || own.scheme != stack.scheme)) {
    same.key = stack.shape.key;
    const std::optional<Scheme> scheme = common_scheme(stack.scheme, own.scheme);
    if (same != stack.shape || !scheme) {
      return Error{
          ErrorKind::kBadFile, state.tensors.file_of(own.sources[0].tensors[0]),
          "module '" + shown_module(state, module) + "'",
          str("the same scheme and input size as '", shown_module(state, stack.first_module), "', ",
              show(stack.shape, stack.scheme), ", because both read the same input"),
          "it is " + show(own.shape, own.scheme)};
    }
    for (Stack* one : {&stack, &own}) {
      widen(one->sources, scheme->weight);
      one->scheme = *scheme;
      one->shape.key = scheme->weight;
    }
  }
  if (!first && !same_bytes(linear.column_groups.view, stack.column_groups.view)) {
    return Error{ErrorKind::kUnsupported, state.tensors.file_of(own.sources[0].tensors[0]),
                 "module '" + shown_module(state, module) + "'",
                 "columns in the same groups as '" + stack.first_module +
                     "', because both read the same input",
                 "their groups differ"};
  }
  if (first) stack.first_module = module;
  const int64_t rows_before = stack.shape.n;
  stack.shape = own.shape;
  stack.shape.n += rows_before;
  stack.scheme = own.scheme;
  stack.column_groups = std::move(linear.column_groups);
  stack.input_scale = std::max(stack.input_scale, linear.input_scale);
  stack.sources.push_back(std::move(own.sources[0]));
  return {};
}

}  // namespace

Status check_activations(const Tensors& tensors, const std::string& gate,
                         const DescribedMatrix& w13, const std::string& down,
                         const DescribedMatrix& w2) {
  if (w13.scheme().activation == w2.scheme().activation) return {};
  return Error{ErrorKind::kUnsupported, tensors.file_of(w2.tensors()[0]), "module '" + down + "'",
               str("the activations of '", gate, "', ", name(w13.scheme()),
                   ", because a layer quantizes them in one format"),
               "it is " + name(w2.scheme())};
}

Result<Stack> describe_stack(const Checkpoint::State& state,
                             const std::vector<std::string>& modules) {
  Stack stack;
  for (const std::string& module : modules) {
    MORACLE_TRY(DescribedLinear linear, describe(state, module));
    MORACLE_CHECK(push(state, stack, std::move(linear), module));
  }
  align_blocks(stack.shape, stack.sources);
  return stack;
}

namespace {

Result<CanonicalMatrix> of_expert(Result<CanonicalMatrix> matrix, int64_t e) {
  if (matrix) return matrix;
  Error error = std::move(matrix).error();
  error.place += str(", expert ", e);
  return error;
}

// Adds the expert's index to read errors of a tensor that holds all experts.
void name_expert(DescribedMatrix::Source& source, int64_t e) {
  source.read = [read = std::move(source.read), e](ThreadPool& pool) {
    return of_expert(read(pool), e);
  };
  if (!source.read_rows) return;
  source.read_rows = [read = std::move(source.read_rows), e](ThreadPool& pool, int64_t first,
                                                             int64_t count) {
    return of_expert(read(pool, first, count), e);
  };
}

}  // namespace

Result<Stack> describe_fused(const Checkpoint::State& state, const ExpertNames& names,
                             const std::string& module, bool is_gate_up, int64_t e,
                             const FusedShape& shape) {
  const int64_t num_experts = shape[0];
  const bool quantized = is_quantized(state, module, module);
  if (!quantized && state.tensors.find(module) == nullptr)
    return not_stored(state, module, "_", "tensor " + module);
  bool transposed = names.transposed;
  if (names.either_way && !quantized) {
    MORACLE_TRY(const TensorView view, state.tensors.get(module));
    transposed =
        view.shape == std::vector<int64_t>{num_experts, shape[2], shape[1]} && shape[1] != shape[2];
  }
  MORACLE_TRY(DescribedLinear linear,
              quantized ? state.reader->describe_expert(state.tensors, module, e, num_experts)
                        : describe_plain_expert(state.tensors, module, e, num_experts, transposed));
  name_expert(linear.source, e);
  if (is_gate_up && names.interleaved) {
    linear.source.read_rows = {};
    linear.source.read =
        [read = std::move(linear.source.read)](ThreadPool& pool) -> Result<CanonicalMatrix> {
      MORACLE_TRY(CanonicalMatrix matrix, read(pool));
      deinterleave_rows(matrix);
      return matrix;
    };
  }
  Stack stack;
  MORACLE_CHECK(push(state, stack, std::move(linear), module));
  return stack;
}

}  // namespace moracle
