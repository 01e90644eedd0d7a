// Describes experts and linear layers from tensors in host memory, for pack() and pack_linear().
#include "arrays.h"
#include "bindings.h"
#include "checkpoint/memory/stored_linear.h"

namespace moracle::python {
namespace {

// Owns the arrays that a StoredExperts views. Any thread may drop them, so their release takes the
// GIL.
struct Kept {
  std::vector<Array> arrays;
  ~Kept() {
    const nb::gil_scoped_acquire acquired;
    arrays.clear();
  }
};

TensorView view_of(const nb::dict& parts, const char* part, const std::string& name, Kept& kept) {
  if (!parts.contains(part)) return {};
  const nb::object object = parts[part];
  if (object.is_none()) return {};
  kept.arrays.push_back(array_of(object, name.c_str()));
  return host_view(kept.arrays.back(), name.c_str());
}

StoredMatrix stored_of(const nb::dict& parts, const char* name, const char* input, Kept& kept) {
  StoredMatrix stored{.name = name, .input_name = input};
  const std::string text = name;
  stored.weight = view_of(parts, "weight", text, kept);
  stored.scales = view_of(parts, "scale", text + "_scale", kept);
  stored.zero_points = view_of(parts, "zp", text + "_zp", kept);
  stored.group_index = view_of(parts, "g_idx", text + "_g_idx", kept);
  stored.bias = view_of(parts, "bias", text + "_bias", kept);
  stored.input_scales = view_of(parts, "input_scale", input, kept);
  return stored;
}

Consumable<DescribedWeights> describe_tensors(const nb::dict& w1, const nb::dict& w2,
                                              nb::handle scheme, int64_t top_k,
                                              const nb::str& activation, float alpha, float beta,
                                              float limit, bool weight_on_input,
                                              const nb::str& packing, bool interleaved,
                                              const std::vector<int32_t>& expert_map) {
  auto kept = std::make_shared<Kept>();
  StoredExperts stored;
  stored.w13 = stored_of(w1, "w1", "a1_scale", *kept);
  stored.w2 = stored_of(w2, "w2", "a2_scale", *kept);
  stored.packing = value_of(parse_packing(utf8_of(packing, "packing")));
  stored.interleaved = interleaved;
  stored.expert_map = expert_map;
  stored.owner = kept;
  LayerSpec spec{.name = "experts", .top_k = top_k};
  spec.activation = {value_of(parse_activation(utf8_of(activation, "activation"))), alpha, beta,
                     limit};
  spec.routing.weight_on_input = weight_on_input;
  spec.scheme = scheme_of(scheme);
  return Consumable(value_of(describe(std::move(stored), std::move(spec))));
}

Consumable<DescribedMatrix> describe_linear(const nb::dict& parts, nb::handle scheme,
                                            const nb::str& packing) {
  auto kept = std::make_shared<Kept>();
  StoredLinear stored;
  stored.matrix = stored_of(parts, "weight", "input_scale", *kept);
  stored.packing = value_of(parse_packing(utf8_of(packing, "packing")));
  stored.owner = kept;
  return Consumable(value_of(describe(std::move(stored), scheme_of(scheme))));
}

}  // namespace

void bind_experts(nb::module_& m) {
  m.def(
      "describe_tensors", &describe_tensors, nb::arg("w1"), nb::arg("w2"), nb::kw_only(),
      nb::arg("scheme"), nb::arg("top_k"), nb::arg("activation") = "silu",
      nb::arg("alpha") = 1.702f, nb::arg("beta") = 1.f, nb::arg("limit") = 0.f,
      nb::arg("weight_on_input") = false, nb::arg("packing") = "rows",
      nb::arg("interleaved") = false, nb::arg("expert_map") = nb::make_tuple(),
      nb::sig("def describe_tensors(w1: dict[str, typing.Any], w2: dict[str, typing.Any], *, "
              "scheme: Scheme | str, top_k: int, activation: str = 'silu', alpha: float = 1.702, "
              "beta: float = 1.0, limit: float = 0.0, weight_on_input: bool = False, packing: str "
              "= 'rows', interleaved: bool = False, expert_map: collections.abc.Sequence[int] = "
              "()) -> DescribedWeights"),
      "The experts of one layer, from contiguous tensors in host memory that stay where they are "
      "until FusedMoe has read them. w1 and w2 hold \"weight\" and, as the scheme needs them, "
      "\"scale\", \"zp\", \"g_idx\", \"bias\" and \"input_scale\". `packing`: \"rows\", \"gptq\", "
      "\"gptq_v2\" or \"awq\". `interleaved`: rows of gate and up alternate in w1. "
      "`expert_map[e]`: the index in the tensors of expert e, or -1.");
  m.def(
      "describe_linear", &describe_linear, nb::arg("parts"), nb::kw_only(), nb::arg("scheme"),
      nb::arg("packing") = "rows",
      nb::sig("def describe_linear(parts: dict[str, typing.Any], *, scheme: Scheme | str, packing: "
              "str = 'rows') -> DescribedMatrix"),
      "One linear layer, from contiguous tensors in host memory that stay where they are until "
      "Linear has read them. `parts` as w1 of describe_tensors, without the dimension of experts.");
}

}  // namespace moracle::python
