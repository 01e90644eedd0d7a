// Tests JSON output: keys, and equal answers for equal seeds.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "moracle/oracle.h"
#include "oracle/backend.h"
#include "paths.h"
#include "run_command.h"

namespace moracle::json_test {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run_command;
using testing::TemporaryFolder;

std::vector<std::string> keys(const Json& json) {
  std::vector<std::string> names;
  for (const auto& item : json.items()) names.push_back(item.key());
  return names;
}

// Runs a verb, which must print one JSON document on stdout and nothing on stderr.
Json answer(const std::vector<std::string>& arguments) {
  const Ran ran = run_command(arguments);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  Json json = Json::parse(ran.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << ran.out;
  return json;
}

TEST(JsonOutput, MachinesListsThisMachineAndKnownMachines) {
  const Json json = answer({"machines", "--json"});
  EXPECT_THAT(keys(json), ElementsAre("here", "known"));
  EXPECT_THAT(keys(json["here"]), ElementsAre("name", "cpu", "gpus"));
  EXPECT_THAT(keys(json["here"]["cpu"]), ElementsAre("model", "isa", "threads", "memory_bytes"));
  EXPECT_EQ(json["here"]["name"], "here");
  std::set<std::string> names;
  for (const Json& machine : json["known"]) {
    EXPECT_THAT(keys(machine), ElementsAre("name", "cpu", "gpus"));
    for (const Json& gpu : machine["gpus"]) {
      const bool opencl = gpu["platform"] == "opencl";
      EXPECT_EQ(gpu["max_allocation_bytes"].is_number(), opencl) << gpu;
      EXPECT_EQ(gpu["max_allocation_bytes"].is_null(), !opencl) << gpu;
    }
    names.insert(machine["name"].get<std::string>());
  }
  EXPECT_EQ(names.size(), json["known"].size());
  EXPECT_TRUE(names.contains("h200"));
}

TEST(JsonOutput, CheckCountsEveryCaseOnce) {
  const Json json = answer({"check", "--json", "--backend", "reference", "--tokens", "1"});
  EXPECT_THAT(keys(json), ElementsAre("rows", "passed", "refused", "failures"));
  EXPECT_EQ(json["failures"], Json::array());
  int passed = 0, refused = 0;
  for (const Json& row : json["rows"]) {
    EXPECT_THAT(keys(row), ElementsAre("backend", "scheme", "passed", "refused", "failed",
                                       "worst_share_of_bound"));
    EXPECT_EQ(row["backend"], "reference");
    passed += row["passed"].get<int>();
    refused += row["refused"].get<int>();
  }
  EXPECT_GT(passed, 0);
  EXPECT_EQ(json["passed"], passed);
  EXPECT_EQ(json["refused"], refused);
}

class ModelJson : public ::testing::Test {
 protected:
  void SetUp() override {
    if (model_.empty()) GTEST_SKIP() << "the small model is not there";
  }
  // `moracle run MODEL --json` and more.
  Json run(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"run", model_, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return answer(arguments);
  }

  const std::string model_ = testing::small_model();
  const TemporaryFolder folder_;
};

TEST_F(ModelJson, RunGivesIdsTextAndTiming) {
  const Json json = run({"-p", "The quick brown fox", "-n", "4"});
  EXPECT_THAT(keys(json), ElementsAre("prompt_ids", "ids", "text", "stop_reason", "backends",
                                      "not_used", "not_followed", "timing"));
  EXPECT_THAT(keys(json["timing"]),
              ElementsAre("load_seconds", "prompt_tokens", "prompt_seconds",
                          "prompt_tokens_per_second", "generated_tokens", "generation_seconds",
                          "generation_tokens_per_second", "peak_memory_bytes"));
  EXPECT_EQ(json["timing"]["prompt_tokens"], json["prompt_ids"].size());
  EXPECT_EQ(json["timing"]["generated_tokens"], json["ids"].size());
  EXPECT_TRUE(json["text"].is_string());
  EXPECT_GE(json["backends"].size(), 1u);
}

TEST_F(ModelJson, RunStopsAtRequestedTokenCount) {
  for (const size_t count : {1, 5}) {
    const Json json = run({"-p", "In the beginning", "--ignore-eos", "-n", std::to_string(count)});
    EXPECT_EQ(json["ids"].size(), count);
    EXPECT_EQ(json["stop_reason"], "length");
  }
}

TEST_F(ModelJson, OneTokenHasNoRate) {
  const Json timing = run({"-p", "a", "-n", "1", "--ignore-eos"})["timing"];
  EXPECT_TRUE(timing["generation_tokens_per_second"].is_null());
}

TEST_F(ModelJson, EqualSeedsGiveEqualIds) {
  auto ids = [&](const char* seed) {
    return run(
        {"-p", "a", "-n", "24", "--temperature", "1.5", "--ignore-eos", "--seed", seed})["ids"];
  };
  const Json first = ids("7");
  EXPECT_EQ(first, ids("7"));
  EXPECT_NE(first, ids("8"));
}

TEST_F(ModelJson, GreedyDecodingIgnoresSeed) {
  const std::vector<std::string> greedy = {"-p", "a", "-n", "12", "--temperature", "0", "--seed"};
  auto ids = [&](const char* seed) {
    std::vector<std::string> arguments = greedy;
    arguments.push_back(seed);
    return run(arguments)["ids"];
  };
  EXPECT_EQ(ids("1"), ids("2"));
}

TEST_F(ModelJson, BackendsGiveTheSameGreedyIds) {
  auto ids = [&](const char* backend) {
    const Json json = run({"-p", "The history of", "-n", "8", "--backend", backend});
    if (std::string(backend) != "auto") {
      EXPECT_EQ(json["backends"], Json::array({backend}));
    }
    return json["ids"];
  };
  EXPECT_EQ(ids("auto"), ids("reference"));
}

TEST_F(ModelJson, EndOfTextTokenStopsUnlessIgnored) {
  // A chat prompt whose answer ends with a stop token.
  const std::string question = "What is BASIC?";
  const Json stopped = run({"--chat", "-p", question, "-n", "60", "--temperature", "0"});
  const Json ignored =
      run({"--chat", "-p", question, "-n", "60", "--temperature", "0", "--ignore-eos"});
  EXPECT_EQ(stopped["stop_reason"], "eos");
  EXPECT_EQ(ignored["stop_reason"], "length");
  ASSERT_LT(stopped["ids"].size(), 60u);
  EXPECT_EQ(ignored["ids"].size(), 60u);
  for (size_t i = 0; i < stopped["ids"].size(); ++i) {
    EXPECT_EQ(stopped["ids"][i], ignored["ids"][i]) << i;
  }
}

TEST_F(ModelJson, ChatRendersPromptWithTemplate) {
  const Json plain = run({"-p", "Hello", "-n", "1"}),
             chat = run({"--chat", "-p", "Hello", "-n", "1"}),
             system = run({"--chat", "--system", "Be brief", "-p", "Hello", "-n", "1"});
  EXPECT_GT(system["prompt_ids"].size(), chat["prompt_ids"].size());
  EXPECT_GT(chat["prompt_ids"].size(), plain["prompt_ids"].size());
  EXPECT_EQ(chat["prompt_ids"][0], 1);  // <|im_start|>
}

TEST_F(ModelJson, PromptFileEqualsPromptArgument) {
  const std::string text = "Lines\nand \xc3\xa9 \xf0\x9f\x98\x80\n";
  EXPECT_EQ(run({"-p", text, "-n", "1"})["prompt_ids"],
            run({"--prompt-file", folder_.write("prompt", text), "-n", "1"})["prompt_ids"]);
}

TEST_F(ModelJson, PerplexityGivesMeanAndScoredCount) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "In the beginning there was a word. ";
  const Json json = answer({"perplexity", model_, "--json", "--text", folder_.write("text", text),
                            "--window", "32", "--max-tokens", "100"});
  EXPECT_THAT(keys(json), ElementsAre("perplexity", "nll", "scored_tokens", "backends"));
  // Windows of 32, 32, 32 and 4 tokens; the first token of each has no score.
  EXPECT_EQ(json["scored_tokens"], 96);
  EXPECT_NEAR(json["perplexity"].get<double>(), std::exp(json["nll"].get<double>()), 1e-9);
}

TEST_F(ModelJson, InspectAccountsForEveryByte) {
  const Json json = answer({"inspect", model_, "--json"});
  EXPECT_THAT(keys(json),
              ElementsAre("architecture", "producer", "num_layers", "hidden_size", "vocab_size",
                          "max_context", "num_experts", "top_k", "intermediate_size", "routing",
                          "bytes", "parts", "stored_types", "tokenizer", "not_used", "unread_keys",
                          "unread_tensors", "not_runnable"));
  EXPECT_TRUE(json["not_runnable"].is_null());
  EXPECT_TRUE(json["stored_types"].empty());
  EXPECT_EQ(json["producer"], "gptq");
  int64_t bytes = 0;
  for (const Json& part : json["parts"]) {
    EXPECT_THAT(keys(part),
                ElementsAre("part", "layers", "scheme", "quantized", "tensors", "bytes"));
    bytes += part["bytes"].get<int64_t>();
  }
  EXPECT_EQ(json["bytes"], bytes);
}

TEST(GgufJson, InspectShowsTypesAndBitsOfEachKindOfTensor) {
  const Json json = answer(
      {"inspect", testing::golden_dir() + "/gguf/models/qwen3moe-super-blocks.gguf", "--json"});
  EXPECT_EQ(json["producer"], "gguf");
  int64_t bytes = 0;
  for (const Json& kind : json["stored_types"]) {
    EXPECT_THAT(keys(kind), ElementsAre("tensors", "types", "bits_per_weight", "bytes"));
    EXPECT_GT(kind["bits_per_weight"].get<double>(), 1);
    bytes += kind["bytes"].get<int64_t>();
  }
  EXPECT_EQ(json["bytes"], bytes);
}

TEST(GgufText, InspectShowsTypesBitsAndUnreadKeys) {
  const Ran ran =
      run_command({"inspect", testing::golden_dir() + "/gguf/models/qwen3moe-blocks.gguf"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const char* line :
       {"  producer      gguf\n",
        "  stored tensors              types             bits per weight     size\n",
        "  blk.*.ffn_gate_exps.weight  q4_0 1, q5_0 1               5.00  10.2 kB\n",
        "  output_norm.weight          f32                         32.00   0.3 kB\n",
        "  all                                                      6.49  64.5 kB\n",
        "  not used: keys of the metadata (not read for this architecture): "
        "qwen3moe.feed_forward_length\n"})
    EXPECT_THAT(ran.out, HasSubstr(line));
}

TEST_F(ModelJson, ExplainGivesEveryReasonOfEveryBackend) {
  for (const char* machine : {"here", "x86-64", "h200"}) {
    const Json json = answer({"explain", model_, "--json", "--machine", machine});
    EXPECT_THAT(keys(json),
                ElementsAre("machine", "device", "parallel", "groups", "others", "placement",
                            "residency", "tokenizer", "not_used", "not_runnable"));
    EXPECT_TRUE(json["placement"].is_null());
    EXPECT_TRUE(json["residency"].is_null());
    EXPECT_TRUE(json["not_runnable"].is_null());
    EXPECT_TRUE(json["parallel"].is_null());
    EXPECT_EQ(json["others"].size(), 4u);
    EXPECT_EQ(json["machine"], machine);
    ASSERT_EQ(json["groups"].size(), 1u);
    const Json& group = json["groups"][0];
    EXPECT_THAT(keys(group), ElementsAre("part", "layers", "scheme", "routing", "chosen",
                                         "weight_bytes", "considered", "plan"));
    EXPECT_THAT(keys(group["plan"]),
                ElementsAre("backend", "layout", "weight_bytes", "workspace_bytes", "scratch_bytes",
                            "max_num_tokens", "in_this_build", "matrices"));
    EXPECT_EQ(group["plan"]["backend"], group["chosen"]);
    ASSERT_EQ(group["plan"]["matrices"].size(), 2u);
    for (const Json& matrix : group["plan"]["matrices"]) {
      EXPECT_THAT(keys(matrix),
                  ElementsAre("n", "k", "input_dtype", "product_bits", "reason", "kernels"));
      ASSERT_FALSE(matrix["kernels"].empty());
      EXPECT_THAT(keys(matrix["kernels"][0]),
                  ElementsAre("name", "from_tokens", "to_tokens", "from_rows", "to_rows"));
      EXPECT_TRUE(matrix["kernels"].back()["to_rows"].is_null());
    }
    EXPECT_EQ(group["layers"], Json({0, 1, 2}));
    EXPECT_EQ(group["scheme"], "int4-w4a16-g128");
    bool chosen_accepts = false;
    for (const Json& verdict : group["considered"]) {
      EXPECT_THAT(keys(verdict), ElementsAre("backend", "accepted", "in_this_build", "reasons",
                                             "tuned", "moved_back"));
      EXPECT_EQ(verdict["accepted"], verdict["reasons"].empty());
      for (const Json& reason : verdict["reasons"]) {
        EXPECT_THAT(keys(reason), ElementsAre("rule", "need", "have"));
      }
      if (verdict["backend"] == group["chosen"]) chosen_accepts = verdict["accepted"].get<bool>();
    }
    EXPECT_TRUE(chosen_accepts);
  }
}

TEST_F(ModelJson, ExplainOfRanksListsExchangesAndBytes) {
  const Json json =
      answer({"explain", model_, "--json", "--parallel", "ep=8", "--machine", "h200"})["parallel"];
  EXPECT_THAT(keys(json), ElementsAre("ep", "tp", "mode", "placement", "chosen", "considered",
                                      "per_token_and_layer", "lm_head"));
  EXPECT_THAT(keys(json["lm_head"]), ElementsAre("ranks", "rows", "weight_bytes"));
  EXPECT_EQ(json["ep"], 8);
  EXPECT_EQ(json["tp"], 1);
  EXPECT_EQ(json["mode"], "replicated");
  EXPECT_EQ(json["placement"], "linear");
  bool chosen_serves = false;
  for (const Json& verdict : json["considered"]) {
    EXPECT_THAT(keys(verdict), ElementsAre("exchange", "reasons"));
    if (verdict["exchange"] == "cuda-peer") {
      ASSERT_EQ(verdict["reasons"].size(), 1u) << "h200 has one GPU";
      EXPECT_EQ(verdict["reasons"][0]["rule"], "devices");
    }
    if (verdict["exchange"] == json["chosen"]) chosen_serves = verdict["reasons"].empty();
  }
  EXPECT_TRUE(chosen_serves);
  ASSERT_EQ(json["per_token_and_layer"].size(), 2u);  // replicated, dispatched
  for (const Json& sent : json["per_token_and_layer"]) {
    EXPECT_THAT(keys(sent), ElementsAre("spread", "layers", "dispatch_bytes", "combine_bytes"));
    EXPECT_GT(sent["dispatch_bytes"].get<int64_t>() + sent["combine_bytes"].get<int64_t>(), 0);
  }
}

TEST_F(ModelJson, DryRunGivesSlotsThatFitGpuMemory) {
  const auto words = [&](const std::string& memory) {
    return std::vector<std::string>{"run",  model_,     "--dry-run", "--json",       "--machine",
                                    "h200", "--device", "cuda",      "--gpu-memory", memory};
  };
  const Json all = answer(words("100GB"));
  EXPECT_TRUE(all["num_slots"].is_null()) << "the GPU holds all of them";
  EXPECT_EQ(all["host_bytes"], 0);
  for (const char* same : {"0.1TB", "100.0gb", "97656250.0kiB"})
    EXPECT_EQ(answer(words(same)), all);
  for (const char* odd : {"1.5", "1.GB", "1.5XB", "1.5e9", "-1.5GB", "9.9e99GB", "1.2.3GB"})
    EXPECT_THAT(run_command(words(odd)).err, HasSubstr("needs a number of bytes, such as 20GB"))
        << odd;
  int64_t experts = 0;
  for (const Json& choice : all["choices"]) {
    if (choice["part"] != "experts") continue;
    experts += choice["plan"]["weight_bytes"].get<int64_t>() * choice["layers"].size();
  }
  // The error says what everything else needs.
  const Ran refused = run_command(words("1KB"));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("for everything except experts, with caches (--gpu-memory)"));
  const int64_t others = std::stoll(refused.err.substr(refused.err.find("needs ") + 6));
  const Json half = answer(words(std::to_string(others + experts / 2)));
  EXPECT_GT(half["num_slots"], 0);
  EXPECT_GT(half["host_bytes"], 0);
  EXPECT_GT(half["transfer_bytes"], 0);
  EXPECT_LE(half["total_bytes"], others + experts / 2);
  EXPECT_EQ(answer(words(std::to_string(others)))["num_slots"], 0);
  EXPECT_TRUE(answer({"run", model_, "--dry-run", "--json"})["num_slots"].is_null());

  // With rates an estimate, and with little host memory experts in files.
  EXPECT_TRUE(half["estimate"].is_null());
  std::vector<std::string> rated = words(std::to_string(others + experts / 2));
  for (const char* word : {"--rates", "host=80,gpu=3000,bus=50,files=2"}) rated.emplace_back(word);
  const Json with_rates = answer(rated);
  EXPECT_GT(with_rates["estimate"]["tokens_per_second"], 0);
  EXPECT_EQ(with_rates["estimate"]["read_rate"], 0);
  EXPECT_EQ(with_rates["estimate"]["others"].size(), 5U) << with_rates["estimate"];
  for (const Json& other : with_rates["estimate"]["others"])
    EXPECT_GT(other["tokens_per_second"], 0) << other;
  for (const std::string& word :
       {std::string("--cpu-memory"), std::to_string(half["host_bytes"].get<int64_t>() / 2)})
    rated.push_back(word);
  const Json in_files = answer(rated);
  EXPECT_LT(in_files["num_on_host"], half["num_on_host"]);
  EXPECT_LE(in_files["host_bytes"], half["host_bytes"].get<int64_t>() / 2);
  EXPECT_GT(in_files["estimate"]["read_rate"], 0);
  rated.erase(rated.begin() + 2);  // --dry-run
  rated.front() = "explain";
  EXPECT_EQ(answer(rated)["placement"]["num_on_host"], in_files["num_on_host"]);
}

TEST_F(ModelJson, FreeGpuMemoryHoldsSmallModel) {
  for (const std::vector<std::string>& memory :
       {std::vector<std::string>{"--gpu-memory"},
        {"--gpu-memory", "auto", "--cpu-memory", "auto"}}) {
    std::vector<std::string> words = {"run",       model_, "--dry-run", "--json",
                                      "--machine", "h200", "--device",  "cuda"};
    words.insert(words.end(), memory.begin(), memory.end());
    EXPECT_TRUE(answer(words)["num_slots"].is_null());
  }
  const Ran wrong = run_command({"run", model_, "--dry-run", "--machine", "h200", "--device",
                                 "cuda", "--gpu-memory", "much"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("or auto for what is free"));
  const Ran several =
      run_command({"run", model_, "--dry-run", "--machine", "h200", "--device", "cuda:0,cuda:1"});
  EXPECT_EQ(several.code, 2);
  EXPECT_THAT(several.err, HasSubstr("--gpu-memory: needs a number of bytes or what is free"));
}

TEST_F(ModelJson, RatesAndPlacementFileNeedGpuMemory) {
  const Ran rates = run_command({"run", model_, "--dry-run", "--machine", "h200", "--device",
                                 "cuda", "--gpu-memory", "1GB", "--rates", "gpu=1,gpu=2"});
  EXPECT_EQ(rates.code, 2);
  EXPECT_THAT(rates.err,
              HasSubstr("--rates: needs rates in GB/s, such as host=80,gpu=3000,bus=50"));
  const Ran placed = run_command({"run", model_, "--dry-run", "--placement", "round-robin"});
  EXPECT_EQ(placed.code, 2);
  EXPECT_THAT(placed.err, HasSubstr("--placement: needs --parallel, or a file together with "
                                    "--gpu-memory"));
}

TEST_F(ModelJson, DryRunGivesWholePlan) {
  const Json json = answer({"run", model_, "--dry-run", "--json"});
  EXPECT_THAT(
      keys(json),
      ElementsAre("choices", "weight_bytes", "workspace_bytes", "scratch_bytes", "activation_bytes",
                  "num_slots", "num_on_host", "host_bytes", "slot_devices", "estimate", "residency",
                  "transfer_bytes", "cache_bytes_per_token", "state_bytes", "cache_dtype",
                  "attention_reason", "total_bytes", "memory_bytes", "tokenizer", "not_used"));
  EXPECT_EQ(json["cache_dtype"], "f32");
  const Json half = answer({"run", model_, "--dry-run", "--kv-cache", "bf16", "--json"});
  EXPECT_EQ(half["cache_dtype"], "bf16");
  EXPECT_EQ(2 * half["cache_bytes_per_token"].get<int64_t>(), json["cache_bytes_per_token"]);
  for (const char* type : {"int8", "fp8"}) {
    const Json bytes = answer({"run", model_, "--dry-run", "--kv-cache", type, "--json"});
    EXPECT_EQ(bytes["cache_dtype"], type);
    EXPECT_LT(bytes["cache_bytes_per_token"], half["cache_bytes_per_token"]);
  }
  // Measured rates matter only if activations may be rounded.
  EXPECT_TRUE(json["attention_reason"].is_null());
  const Json rounded = answer({"run", model_, "--dry-run", "--activations", "bf16", "--json"});
  const bool two_types = missing(Isa::kAvx512Bf16, Machine::here().cpu.isa) == Isa::kNone;
  EXPECT_EQ(rounded["attention_reason"].is_string(), two_types);
  std::set<std::string> parts;
  for (const Json& choice : json["choices"]) {
    EXPECT_THAT(keys(choice), ElementsAre("part", "layers", "scheme", "plan"));
    parts.insert(choice["part"].get<std::string>());
  }
  EXPECT_EQ(parts, (std::set<std::string>{"attention qkv", "attention output", "router", "experts",
                                          "output"}));
  EXPECT_LT(json["total_bytes"], json["memory_bytes"]);
}

TEST_F(ModelJson, BackendMapAppliesToNamedLayers) {
  const Json json = answer({"run", model_, "--dry-run", "--json", "--backend",
                            "model.layers.1.mlp.experts=reference,*=cpu"});
  for (const Json& choice : json["choices"]) {
    const bool named = choice["part"] == "experts" && choice["layers"] == Json({1});
    EXPECT_EQ(choice["plan"]["backend"], named ? "reference" : "cpu") << choice.dump();
  }
}

TEST_F(ModelJson, DeterministicRunsOnlyBatchInvariantRows) {
  const Json json = run({"-p", "In the beginning", "-n", "2", "--deterministic"});
  for (const Json& listed : json["backends"]) {
    const auto used = listed.get<std::string>();
    const auto row = std::find_if(moracle::backends().begin(), moracle::backends().end(),
                                  [&](const Backend& b) { return b.name == used; });
    ASSERT_NE(row, moracle::backends().end()) << used;
    EXPECT_EQ(missing(Feature::kDeterministic, row->features), Feature::kNone) << used;
  }
}

}  // namespace
}  // namespace moracle::json_test
