// Tests that each rule rejects its own case and nothing else.
#include "oracle/rules/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "conformance/conformance.h"
#include "layout/layout.h"
#include "oracle/fake_rows.h"

namespace moracle::rules_test {
namespace {

using ::testing::HasSubstr;

struct Situation {
  Backend backend = fake::table().back();
  Request request{.layer = fake::layer(Scheme{int4_static_group(128), {}})};
  Machine machine = *Machine::find("x86-64");
};

void deny(Situation& s, Feature feature) {
  s.backend.features = missing(s.backend.features, feature);
}

/// Changes the row to this kind of device and the machine to one that has such a device.
void put_on(Situation& s, Platform platform, const char* machine) {
  s.backend.platform = platform;
  s.machine = *Machine::find(machine);
  s.request.platform.reset();
  s.request.device_index.reset();
}

/// The names of the rules that reject the row.
std::set<std::string> objections(const Situation& s) {
  std::set<std::string> names;
  for (const Rule& rule : rules()) {
    if (!rule.refuse(s.backend, s.request, s.machine)) continue;
    names.insert(std::string(rule.name));
    if (rule.ends) break;
  }
  return names;
}

/// One change to a situation that every rule accepts, the rule that must reject it, and its
/// message.
struct Trigger {
  const char* rule;
  const char* what;
  std::function<void(Situation&)> change;
  const char* need;
  const char* have;
};

std::vector<Trigger> triggers() {
  return {
      {"layer-spec", "no experts", [](Situation& s) { s.request.layer.num_experts = 0; },
       "num_experts: 1 to 1048576", "it is 0"},
      {"requested", "another name", [](Situation& s) { s.request.backend = "cpu"; },
       "'cpu', requested by name", "'fake-all'"},
      {"platform", "another kind of device",
       [](Situation& s) {
         put_on(s, Platform::kCpu, "x86-64");
         s.request.platform = Platform::kOpenCl;
       },
       "opencl", "this backend runs on cpu"},
      {"build", "no maker", [](Situation& s) { s.backend.kernels = nullptr; }, "a build with",
       "without it"},
      {"build", "kernels of another build",
       [](Situation& s) {
         s.backend.kernels = &fake::kElsewhere;
         s.machine.every_platform = false;
       },
       "a build with", "without it"},
      {"device", "a CUDA row on a machine without GPUs",
       [](Situation& s) { put_on(s, Platform::kCuda, "x86-64"); }, "cuda", "this machine has none"},
      {"device", "a CUDA row beside an OpenCL device",
       [](Situation& s) { put_on(s, Platform::kCuda, "mi300x"); }, "cuda", "this machine has none"},
      {"isa", "AMX on a CPU without it",
       [](Situation& s) {
         s.backend.isa = Isa::kAmxInt8 | Isa::kAvx512;
         s.machine = *Machine::find("xeon-avx512");
       },
       "amx_int8", "this CPU has avx2 avx512 avx512_vnni"},
      {"isa", "AVX2 on a CPU that has nothing",
       [](Situation& s) {
         s.backend.isa = Isa::kAvx2;
         s.machine = *Machine::find("x86-64");
       },
       "avx2", "this CPU has none"},
      {"device", "an index that no GPU has",
       [](Situation& s) {
         put_on(s, Platform::kCuda, "h200");
         s.request.device_index = 3;
       },
       "cuda", "none with index 3"},
      {"architecture", "a GPU that is too old",
       [](Situation& s) {
         put_on(s, Platform::kCuda, "a100");
         s.backend.min_capability = 90;
       },
       "9.0 or later", "NVIDIA A100 80GB has 8.0"},
      {"architecture", "a GPU that is too new",
       [](Situation& s) {
         put_on(s, Platform::kCuda, "b200");
         s.backend.min_capability = s.backend.max_capability = 90;
       },
       "compute capability 9.0", "B200 has 10.0"},
      {"device-features", "no subgroups",
       [](Situation& s) {
         put_on(s, Platform::kOpenCl, "pocl");
         s.backend.gpu_features = GpuFeature::kSubgroups | GpuFeature::kMatrix;
       },
       "subgroups matrix", "has shared_pointers atomics64"},
      {"shared-memory", "tiles larger than a block's memory",
       [](Situation& s) {
         put_on(s, Platform::kCuda, "rtx-5090");
         s.backend.shared_memory_bytes = 227 * 1024;
       },
       "227 KiB of shared memory", "RTX 5090 has 99 KiB"},
      {"library", "a library that is not installed",
       [](Situation& s) {
         put_on(s, Platform::kCuda, "h200");
         s.backend.libraries = Library::kCublasLt;
         s.machine.libraries = Library::kNone;
       },
       "the library cuBLASLt", "it was not found"},
      {"memory", "a layer larger than the machine",
       [](Situation& s) {
         put_on(s, Platform::kCpu, "x86-64");
         s.backend.kernels = &fake::kKernels;
         s.request.layer.hidden_size = s.request.layer.intermediate_size = kMaxLayerSize;
         s.request.max_num_tokens = 1;
       },
       "MB of memory for this layer", "MB"},
      {"memory", "experts larger than one allocation",
       [](Situation& s) {
         put_on(s, Platform::kOpenCl, "pocl");
         s.backend.kernels = &fake::kKernels;
         s.request.layer.num_experts = 4096;
         s.request.max_num_tokens = 1;
         s.machine.gpus[0].max_allocation_bytes = 10'000'000;
       },
       "MB of it in one allocation", "at most 10 MB in one allocation"},
      {"experts", "experts for a row that multiplies one matrix",
       [](Situation& s) { s.backend.linear_only = true; }, "a linear layer", "two matrices"},
      {"weights", "a format that it does not read",
       [](Situation& s) {
         s.backend.weights = fake::kInt8;
         s.request.layer.scheme = {int4_static_group(128), {}};
       },
       "weights in i8", "the layer's weights are i4"},
      {"weights", "an fp8 that no row reads",
       [](Situation& s) {
         s.request.layer.scheme.weight = {DType::kF8E5M2, kPerRow};
       },
       "bf16 or f16 or f32 or i8 or i4", "f8_e5m2"},
      {"activations", "int8 activations for a weight-only row",
       [](Situation& s) {
         s.backend.activations = {};
         s.request.layer.scheme = {kInt8StaticChannelSym, kInt8DynamicTokenSym};
       },
       "float activations", "quantizes them to i8"},
      {"activations", "fp8 activations for an int8 row",
       [](Situation& s) {
         s.backend.activations = fake::kInt8;
         s.request.layer.scheme = {kInt8StaticChannelSym, QuantKey{DType::kF8E4M3, kPerRow, true}};
       },
       "float activations or activations in i8", "f8_e4m3"},
      {"products", "int8 activations and fp8 weights where like is multiplied with like",
       [](Situation& s) {
         static constexpr Product kLike[] = {{DType::kI8, DType::kI8}, {DType::kI8, DType::kI4}};
         s.backend.products = kLike;
         s.request.layer.scheme = {kFp8StaticChannelSym, kInt8DynamicTokenSym};
       },
       "(activation x weight) of i8 x i8 or i8 x i4", "multiplies i8 x f8_e4m3"},
      {"products", "small groups of fp8 activations",
       [](Situation& s) {
         static constexpr Product kLike[] = {{DType::kF8E4M3, DType::kF8E4M3, 32}};
         s.backend.products = kLike;
         s.request.layer.scheme = {kFp8StaticChannelSym, fp8_dynamic_group(16)};
       },
       "in groups that are a multiple of 32", "in groups of 16"},
      {"activation-scales", "one scale for a whole batch",
       [](Situation& s) {
         QuantKey by_batch = kInt8DynamicTokenSym;
         by_batch.group = GroupShape{};
         s.request.layer.scheme = {kInt8StaticChannelSym, by_batch};
       },
       "int8 per token", "the scheme is int8 weights"},
      {"zero-points", "zero points for a symmetric row",
       [](Situation& s) {
         deny(s, Feature::kZeroPoints);
         s.request.layer.scheme.weight.symmetric = false;
       },
       "symmetric weights", "zero points"},
      {"minimums", "minimums for a layout that holds none",
       [](Situation& s) {
         s.backend.layout = &kRows16Layout;
         s.request.layer.scheme = *parse_scheme("int4-w4a16-g32-asym-min");
       },
       "without minimums, which layout rows16 does not hold", "have minimums"},
      {"act-order", "act-order for a row that wants neighbours",
       [](Situation& s) {
         deny(s, Feature::kActOrder);
         s.request.layer.group_index = true;
       },
       "neighbouring columns", "desc_act"},
      {"bias", "biases for a row that adds none",
       [](Situation& s) {
         deny(s, Feature::kBias);
         s.request.layer.bias = true;
       },
       "without biases", "has biases"},
      {"group-size", "groups that its loop cannot cut",
       [](Situation& s) {
         s.backend.group_multiple = 48;
         s.request.layer.scheme = {int4_static_group(128), {}};
       },
       "a group size that is a multiple of 48", "it is 128"},
      {"sum-length", "more exact products than its integers hold",
       [](Situation& s) {
         s.backend.max_integer_k = 255;
         s.request.layer.scheme = {kInt8StaticChannelSym, kInt8DynamicTokenSym};
       },
       "at most 255 columns", "the layer has 256"},
      {"shape", "a hidden size that its tiles cannot cut",
       [](Situation& s) { s.backend.size_multiple = 24; }, "multiples of 24",
       "they are 256 and 128"},
      {"tokens", "more rows than 32 bits count",
       [](Situation& s) { s.request.max_num_tokens = int64_t{1} << 31; },
       "at most 536870911 tokens", "allows 2147483648"},
      {"tokens", "none", [](Situation& s) { s.request.max_num_tokens = 0; }, "at least 1 token",
       "allows 0"},
      {"tokens", "fewer than none", [](Situation& s) { s.request.max_num_tokens = -1; },
       "at least 1 token", "allows -1"},
      {"activation-format", "batched activations",
       [](Situation& s) {
         deny(s, Feature::kBatched);
         s.request.parallel.format = ActivationFormat::kBatched;
       },
       "[num_tokens, hidden_size]", "batched"},
      {"expert-parallel", "experts of several ranks",
       [](Situation& s) {
         deny(s, Feature::kExpertParallel);
         s.request.parallel.ep_size = 4;
       },
       "on one rank", "over 4 ranks"},
      {"expert-parallel", "a rank that there is not",
       [](Situation& s) {
         s.request.parallel.ep_size = 4;
         s.request.parallel.ep_rank = 4;
       },
       "a rank from 0 to 3", "it is 4"},
      {"expert-parallel", "a map of other experts",
       [](Situation& s) { s.request.parallel.expert_map = ExpertMap::all(7); },
       "an entry for each of", "it has 7"},
      {"input-weight", "a weight on the input of several experts",
       [](Situation& s) { s.request.layer.routing.weight_on_input = true; }, "one expert per token",
       "the layer selects"},
      {"lora", "adapters",
       [](Situation& s) {
         deny(s, Feature::kLora);
         s.request.lora_rank = 16;
       },
       "without LoRA", "rank up to 16"},
      {"lora", "a rank above every size",
       [](Situation& s) { s.request.lora_rank = kMaxLayerSize + 1; }, "a rank from 0 to 1048576",
       "rank 1048577 and 1 adapters"},
      {"lora", "a negative rank", [](Situation& s) { s.request.lora_rank = -1; },
       "a rank from 0 to 1048576", "rank -1 and 1 adapters"},
      {"deterministic", "bits that may not depend on the batch",
       [](Situation& s) {
         deny(s, Feature::kDeterministic);
         s.request.deterministic = true;
       },
       "may depend on the other tokens in the batch", "batch-invariant results are requested"},
  };
}

TEST(Rules, AcceptRowWithoutRestrictions) {
  EXPECT_EQ(objections({}), std::set<std::string>{});
}

TEST(Rules, EachMismatchTriggersExactlyItsRule) {
  for (const Trigger& trigger : triggers()) {
    SCOPED_TRACE(trigger.what);
    Situation situation;
    trigger.change(situation);
    EXPECT_EQ(objections(situation), std::set<std::string>{trigger.rule});
    const Backend row[] = {situation.backend};
    const Selection selection = select(situation.request, situation.machine, row);
    ASSERT_EQ(selection.considered[0].reasons.size(), 1u);
    const Reason& reason = selection.considered[0].reasons[0];
    EXPECT_EQ(reason.rule, trigger.rule);
    EXPECT_THAT(reason.need, HasSubstr(trigger.need));
    EXPECT_THAT(reason.have, HasSubstr(trigger.have));
    EXPECT_FALSE(selection.plan);
  }
}

TEST(Rules, EachHasATriggeringCase) {
  std::set<std::string> triggered, named;
  for (const Trigger& trigger : triggers()) triggered.insert(trigger.rule);
  for (const Rule& rule : rules())
    EXPECT_TRUE(named.insert(std::string(rule.name)).second) << rule.name;
  EXPECT_EQ(triggered, named);
}

TEST(Rules, SeveralMismatchesTriggerAllTheirRules) {
  for (const Trigger& one : triggers()) {
    for (const Trigger& other : triggers()) {
      Situation situation;
      one.change(situation);
      other.change(situation);
      const std::set<std::string> found = objections(situation);
      // A broken spec hides all other mismatches.
      if (found.contains("layer-spec")) {
        EXPECT_EQ(found.size(), 1u) << one.what << ", " << other.what;
        continue;
      }
      // The later change may undo the earlier change, but not the reverse.
      EXPECT_TRUE(found.contains(other.rule)) << one.what << ", " << other.what;
    }
  }
}

// A refusal names float activations if the same row serves with them, and only then.
TEST(Rules, NameFloatActivationsWhereTheyServe) {
  const auto hinted = [](const Situation& s) {
    const Backend row[] = {s.backend};
    const Selection selection = select(s.request, s.machine, row);
    EXPECT_FALSE(selection.plan);
    int hints = 0;
    for (const Reason& reason : selection.considered[0].reasons)
      hints += reason.need.ends_with(" (activations=16bit would serve)");
    EXPECT_TRUE(hints == 0 || hints == static_cast<int>(selection.considered[0].reasons.size()));
    return hints > 0;
  };
  static constexpr Product kInt8Products[] = {{DType::kI8, DType::kI8}};
  Situation s;
  s.request.layer.scheme = {kFp8StaticChannelSym, kFp8DynamicTokenSym};
  s.backend.activations = {};
  EXPECT_TRUE(hinted(s)) << "activations";
  s.backend.activations = fake::kAllActivations;
  s.backend.products = kInt8Products;
  EXPECT_TRUE(hinted(s)) << "products";
  s.backend.products = {};
  s.backend.max_integer_k = 255;
  EXPECT_TRUE(hinted(s)) << "sum-length";
  s.backend.activations = {};
  EXPECT_TRUE(hinted(s)) << "two rules";
  deny(s, Feature::kBias);
  s.request.layer.bias = true;
  EXPECT_FALSE(hinted(s)) << "biases stay";
  s.request.layer.bias = false;
  s.request.backend = "another";
  EXPECT_FALSE(hinted(s)) << "another row is requested";
  s.request.backend = "auto";
  s.request.layer.scheme.activation.reset();
  s.backend.weights = fake::kInt8;
  EXPECT_FALSE(hinted(s)) << "activations are floats";
}

// On every known machine the hint is true: the request with float activations gets that row.
TEST(Rules, NameFloatActivationsOnEveryMachineWhereTheyServe) {
  int hints = 0;
  for (const Machine& machine : Machine::known()) {
    for (const Scheme& scheme : conformance::schemes()) {
      const Request stored{.layer = fake::layer(scheme)};
      Request floats = stored;
      floats.layer.scheme.activation.reset();
      const Selection refused = select(stored, machine), served = select(floats, machine);
      for (const Verdict& verdict : refused.considered) {
        SCOPED_TRACE(verdict.backend->name);
        const bool serves = fake::verdict(served, verdict.backend->name)->accepted();
        for (const Reason& reason : verdict.reasons) {
          const bool hint = reason.need.find("activations=16bit") != std::string::npos;
          EXPECT_EQ(hint, scheme.activation && serves) << machine.name << ", " << name(scheme);
          hints += hint;
        }
      }
    }
  }
  EXPECT_GT(hints, 0);
}

// The message names each missing CPU feature bit and no other.
TEST(Rules, NameOnlyMissingFeatures) {
  Situation situation;
  situation.backend.isa = Isa::kAvx2 | Isa::kAvx512 | Isa::kAvx512Bf16 | Isa::kAmxBf16;
  const Backend row[] = {situation.backend};
  const struct {
    const char* machine;
    const char* need;
  } expected[] = {{"x86-64", "avx2 avx512 avx512_bf16 amx_bf16"},
                  {"desktop-avx2", "avx512 avx512_bf16 amx_bf16"},
                  {"xeon-avx512", "avx512_bf16 amx_bf16"},
                  {"epyc-zen4", "amx_bf16"}};
  for (const auto& [machine, need] : expected) {
    const Selection s = select(situation.request, *Machine::find(machine), row);
    ASSERT_EQ(s.considered[0].reasons.size(), 1u) << machine;
    EXPECT_EQ(s.considered[0].reasons[0].need, "CPU features " + std::string(need));
  }
  EXPECT_TRUE(select(situation.request, *Machine::find("xeon-amx"), row).plan);
}

TEST(Rules, AcceptDividingGroupSizesAndChannels) {
  Situation situation;
  situation.backend.group_multiple = 32;
  for (int64_t size : {int64_t{32}, int64_t{64}, int64_t{128}, GroupShape::kAll}) {
    situation.request.layer.scheme.weight = int4_static_group(size);
    EXPECT_TRUE(objections(situation).empty()) << size;
  }
  for (int64_t size : {1, 16, 33, 48}) {
    situation.request.layer.scheme.weight = int4_static_group(size);
    EXPECT_EQ(objections(situation), std::set<std::string>{"group-size"}) << size;
  }
  situation.request.layer.scheme.weight = kBF16Weight;
  EXPECT_TRUE(objections(situation).empty());
}

TEST(Rules, LimitColumnsOfEveryMatrixForExactSums) {
  Situation situation;
  situation.request.layer.scheme = {kInt8StaticChannelSym, kInt8DynamicTokenSym};
  situation.request.layer.hidden_size = 100;
  situation.request.layer.intermediate_size = 300;
  for (auto [most, refused] : {std::pair{0, false}, {299, true}, {300, false}}) {
    situation.backend.max_integer_k = most;
    EXPECT_EQ(objections(situation).contains("sum-length"), refused) << most;
  }
  // A dense linear layer has no w2. Without codes there are no integer sums.
  situation.backend.max_integer_k = 100;
  situation.request.layer.linear = true;
  EXPECT_TRUE(objections(situation).empty());
  situation.backend.max_integer_k = 1;
  situation.request.layer.scheme.activation.reset();
  EXPECT_TRUE(objections(situation).empty());
}

// One GPU that passes every rule is enough. A device index selects one GPU, so the others do not
// count.
TEST(Rules, CheckEveryGpuUnlessOneIsRequested) {
  Situation situation;
  put_on(situation, Platform::kCuda, "a100");
  situation.backend.min_capability = 90;
  GpuInfo hopper = Machine::find("h200")->gpus[0];
  hopper.index = 1;
  situation.machine.gpus.push_back(hopper);
  EXPECT_TRUE(objections(situation).empty());
  situation.request.device_index = 1;
  EXPECT_TRUE(objections(situation).empty());
  situation.request.device_index = 0;
  EXPECT_EQ(objections(situation), std::set<std::string>{"architecture"});
}

// Rows that do not fuse the activation function leave it to a stage.
TEST(Rules, DoNotDependOnActivationFunction) {
  for (const Backend& row : backends()) {
    for (const Machine& machine : Machine::known()) {
      Request request{.layer = fake::layer(kBF16Weight)};
      const std::string silu = explain(select(request, machine, {&row, 1}));
      for (Activation activation : {Activation::kGelu, Activation::kRelu2, Activation::kSwigluOai,
                                    Activation::kSiluNoMul, Activation::kRelu2NoMul}) {
        request.layer.activation = {.function = activation, .limit = 7};
        EXPECT_EQ(explain(select(request, machine, {&row, 1})), silu)
            << row.name << ", " << machine.name << ", " << name(activation);
      }
    }
  }
}

// Every row takes ids and weights from the routing stage, for every router.
TEST(Rules, DoNotDependOnRouterScore) {
  for (const Backend& row : backends()) {
    for (Score score :
         {Score::kSoftmax, Score::kSigmoid, Score::kTopkThenSoftmax, Score::kSparseMixer}) {
      Request request{.layer = fake::layer(kBF16Weight)};
      const Machine machine = *Machine::find("h200");
      const auto reasons = [&] {
        const Selection selection = select(request, machine, {&row, 1});
        return explain(selection);
      };
      const std::string plain = reasons();
      request.layer.routing.score = score;
      EXPECT_EQ(reasons(), plain) << row.name;
    }
  }
}

}  // namespace
}  // namespace moracle::rules_test
