// Tests writing quantized checkpoints. Reading one back equals quantizing at load. The output
// folder is complete or absent.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "checkpoint/safetensors_image.h"
#include "checkpoint/write/write_safetensors.h"
#include "moracle/checkpoint.h"
#include "paths.h"
#include "reader_fixture.h"

namespace moracle::testing::quantize_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
nlohmann::json json_of(const std::string& path) {
  return nlohmann::json::parse(content_of(path));
}

// A plain model on disk, and an output path next to it.
struct Workshop {
  TemporaryFolder folder;
  std::string from = folder.path() + "/plain", to = folder.path() + "/quantized";

  explicit Workshop(const SyntheticCheckpoint& checkpoint) {
    fs::create_directory(from);
    must(checkpoint.write(from));
  }
  Result<QuantizeReport> run(const std::string& scheme, const QuantizeOptions& options = {}) const {
    return quantize(must(Checkpoint::open(from)), must(QuantizationMap::parse(scheme)), to,
                    options);
  }
};

// No group of 4 codes and no block divides these sizes. K is a multiple of 32, as mxfp8 needs.
SyntheticCheckpoint plain() {
  return SyntheticCheckpoint::plain(
      {.layers = 1, .experts = 2, .hidden = 160, .intermediate = 96, .heads = 3, .head_dim = 32});
}

void expect_equal(const CanonicalMatrix& a, const CanonicalMatrix& b) {
  EXPECT_EQ(a.key, b.key);
  EXPECT_TRUE(std::ranges::equal(a.codes, b.codes));
  EXPECT_EQ(a.scales, b.scales);
  EXPECT_EQ(a.bias, b.bias);
}
void expect_equal(const DescribedMatrix& read, const DescribedMatrix& online) {
  EXPECT_EQ(read.shape(), online.shape());
  EXPECT_EQ(read.scheme(), online.scheme());
  ASSERT_EQ(read.num_experts(), online.num_experts());
  for (int64_t e = 0; e < read.num_experts(); ++e)
    expect_equal(must(read.expert(e)), must(online.expert(e)));
}

// Compares the experts and the attention of layer 0.
void expect_as_online(const std::string& written, const std::string& plain, const Scheme& scheme) {
  const Checkpoint read = must(Checkpoint::open(written)), floats = must(Checkpoint::open(plain));
  const DescribedWeights layer = must(read.moe_layer(0)),
                         online = must(quantize(must(floats.moe_layer(0)), scheme));
  EXPECT_TRUE(layer.spec.same_but_name(online.spec));
  expect_equal(layer.w13, online.w13);
  expect_equal(layer.w2, online.w2);
  for (const auto& modules : {kQkv, {kAttention + "o_proj"}})
    expect_equal(must(read.linear(modules)), must(quantize(must(floats.linear(modules)), scheme)));
}

TEST(QuantizeCheckpoint, ReadsBackAsQuantizedOnline) {
  auto source = plain();
  source.add_floats(kAttention + "o_proj.bias", {160});
  for (const OnlineScheme& online : online_schemes()) {
    SCOPED_TRACE(online.name);
    const Workshop workshop(source);
    const QuantizeReport report = must(workshop.run(std::string(online.name)));
    EXPECT_THAT(report.schemes, ElementsAre(online.scheme));
    EXPECT_EQ(report.num_quantized, 4 + 2 * 3);
    EXPECT_EQ(report.num_quantized + report.num_left, static_cast<int64_t>(source.tensors.size()));
    expect_as_online(workshop.to, workshop.from, online.scheme);
    EXPECT_EQ(must(Checkpoint::open(workshop.to)).producer(), "compressed-tensors");
    EXPECT_EQ(report.bytes_before, must(Checkpoint::open(workshop.from)).total_bytes());
    EXPECT_EQ(report.bytes_after, must(Checkpoint::open(workshop.to)).total_bytes());
  }
}

TEST(QuantizeCheckpoint, ReadsBackInFormatsOfOtherProducers) {
  for (const auto& [format, scheme, producer] :
       {std::tuple{"fp8", "fp8-per-block", "fp8"}, {"modelopt", "mxfp8", "modelopt"}}) {
    const Workshop workshop(plain());
    QuantizeOptions options;
    options.format = format;
    must(workshop.run(scheme, options));
    expect_as_online(workshop.to, workshop.from, must(parse_online_scheme(scheme)));
    EXPECT_EQ(must(Checkpoint::open(workshop.to)).producer(), producer);
    // Either config.json or the tool's own file is enough.
    if (format == std::string("modelopt")) {
      auto config = json_of(workshop.to + "/config.json");
      config.erase("quantization_config");
      std::ofstream(workshop.to + "/config.json") << config;
      expect_as_online(workshop.to, workshop.from, must(parse_online_scheme(scheme)));
    }
  }
}

TEST(QuantizeCheckpoint, GoldenCutMatchesOnlineQuantization) {
  const std::string cut = testing::golden_dir() + "/layers/qwen3moe-bf16";
  for (const OnlineScheme& online : online_schemes()) {
    const TemporaryFolder folder;
    const std::string to = folder.path() + "/to";
    const Checkpoint floats = must(Checkpoint::open(cut));
    must(quantize(floats, must(QuantizationMap::parse(online.name)), to));
    const DescribedWeights read = must(must(Checkpoint::open(to)).moe_layer(1)),
                           want = must(quantize(must(floats.moe_layer(1)), online.scheme));
    expect_equal(read.w13, want.w13);
    expect_equal(read.w2, want.w2);
  }
}

TEST(QuantizeCheckpoint, CopiesUnquantizedTensorsBitForBit) {
  const auto source = plain();
  const Workshop workshop(source);
  must(workshop.run("*.experts.*=none,fp8-per-channel"));
  const auto file = must(testing::SafetensorsImage::open(workshop.to + "/model.safetensors"));
  int64_t same = 0;
  for (const auto& [name, tensor] : source.tensors) {
    if (!file.tensors().contains(name) || file.tensors().at(name).dtype != tensor.dtype) continue;
    const TensorView& view = file.tensors().at(name);
    EXPECT_EQ(view.shape, tensor.shape);
    EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), view.data,
                           view.data + view.num_bytes()))
        << name;
    ++same;
  }
  EXPECT_EQ(same, static_cast<int64_t>(source.tensors.size()) - 4);
}

TEST(QuantizeCheckpoint, ReportsUnquantizedModules) {
  const Workshop workshop(plain());
  must(workshop.run("*.o_proj=none,*.self_attn.*=int8-per-channel,mxfp8"));
  const auto config = json_of(workshop.to + "/config.json");
  const auto& quantization = config["quantization_config"];
  EXPECT_EQ(quantization["quant_method"], "compressed-tensors");
  EXPECT_EQ(quantization["quantization_status"], "compressed");
  EXPECT_EQ(quantization["format"], "mixed-precision");
  EXPECT_THAT(quantization["ignore"],
              UnorderedElementsAre("lm_head", kAttention + "o_proj", "model.layers.0.mlp.gate"));
  EXPECT_EQ(quantization["config_groups"].size(), 2u);
  EXPECT_EQ(config["hidden_size"], 160);
  const Checkpoint read = must(Checkpoint::open(workshop.to));
  EXPECT_EQ(name(must(read.moe_layer(0)).spec.scheme), "mxfp8-w8a8");
  EXPECT_EQ(name(must(read.linear(kQkv)).scheme()), "int8-w8a8");
  EXPECT_EQ(name(must(read.linear({kAttention + "o_proj"})).scheme()), "bf16");
}

TEST(QuantizeCheckpoint, CopiesOtherFilesButNoOtherWeights) {
  auto source = plain();
  source.files = {
      {"tokenizer.json", "{}"},        {"chat_template.jinja", "a"}, {"README.md", "b"},
      {"reference.json", "{}"},        {"pytorch_model.bin", "c"},   {".gitattributes", "d"},
      {"generation_config.json", "{}"}};
  const Workshop workshop(source);
  fs::create_directories(workshop.from + "/more/deep");
  std::ofstream(workshop.from + "/more/deep/notes.txt") << "e";
  std::ofstream(workshop.from + "/more/weights.safetensors") << "f";
  must(workshop.run("mxfp8"));
  EXPECT_THAT(names_in(workshop.to),
              ElementsAre("chat_template.jinja", "config.json", "generation_config.json",
                          "model.safetensors", "more", "tokenizer.json"));
  EXPECT_EQ(content_of(workshop.to + "/more/deep/notes.txt"), "e");
  EXPECT_THAT(names_in(workshop.to + "/more"), ElementsAre("deep"));
}

TEST(QuantizeCheckpoint, KeepsNumbersThatAreNotFinite) {
  auto source = plain();
  source.config["limits"] = {0.5, "@"};
  const Workshop workshop(source);
  std::string text = content_of(workshop.from + "/config.json");
  text.replace(text.find("\"@\""), 3, "-Infinity");
  std::ofstream(workshop.from + "/config.json") << text;
  must(workshop.run("mxfp8"));
  EXPECT_THAT(content_of(workshop.to + "/config.json"), HasSubstr("0.5,\n    -Infinity\n"));
  EXPECT_TRUE(Checkpoint::open(workshop.to).ok());
}

TEST(QuantizeCheckpoint, WritesShardsListedInIndex) {
  const Workshop workshop(plain());
  QuantizeOptions options;
  options.max_shard_bytes = 60'000;
  const QuantizeReport report = must(workshop.run("fp8-per-block", options));
  ASSERT_GT(report.files.size(), 2u);
  const auto index = json_of(workshop.to + "/model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], report.bytes_after);
  size_t tensors = 0;
  for (const std::string& name : report.files) {
    const auto file = must(testing::SafetensorsImage::open(workshop.to + "/" + name));
    tensors += file.tensors().size();
    for (const auto& [tensor, view] : file.tensors()) {
      EXPECT_EQ(index["weight_map"][tensor], name);
      // Each module's scale is stored next to its codes.
      if (tensor.ends_with(".weight_scale")) {
        EXPECT_TRUE(file.tensors().contains(tensor.substr(0, tensor.size() - 6)));
      }
    }
  }
  EXPECT_EQ(index["weight_map"].size(), tensors);
  expect_as_online(workshop.to, workshop.from, must(parse_online_scheme("fp8-per-block")));
}

TEST(QuantizeCheckpoint, WritesSameBytesOnEveryRun) {
  const Workshop workshop(plain());
  must(workshop.run("int8-per-channel"));
  const std::string first = content_of(workshop.to + "/model.safetensors"),
                    config = content_of(workshop.to + "/config.json");
  fs::remove_all(workshop.to);
  must(workshop.run("int8-per-channel"));
  EXPECT_TRUE(first == content_of(workshop.to + "/model.safetensors"));
  EXPECT_EQ(config, content_of(workshop.to + "/config.json"));
}

// PyTorch reads a tensor in place only if its address is a multiple of its width.
TEST(QuantizeCheckpoint, AlignsEveryTensorToItsElementSize) {
  for (const char* scheme : {"int8-per-channel-weight-only", "mxfp8"}) {
    const Workshop workshop(plain());
    must(workshop.run(scheme));
    const auto file = must(testing::SafetensorsImage::open(workshop.to + "/model.safetensors"));
    const auto* start = file.bytes().data();
    for (const auto& [tensor, view] : file.tensors())
      EXPECT_EQ((view.data - start) % (bits(view.dtype) / 8), 0) << tensor;
    const std::string text = content_of(workshop.to + "/model.safetensors");
    EXPECT_THAT(text.substr(8, 40), HasSubstr(R"("__metadata__":{"format":"pt"})"));
    EXPECT_EQ((static_cast<unsigned char>(text[0]) + 256 * static_cast<unsigned char>(text[1])) % 8,
              0);
  }
}

// After any error only the source folder exists.
void expect_nothing_left(const Workshop& workshop) {
  EXPECT_THAT(names_in(workshop.folder.path()), ElementsAre("plain"));
}

TEST(QuantizeCheckpoint, LeavesNoFilesWhenStopped) {
  const Workshop workshop(plain());
  int calls = 0;
  QuantizeOptions count;
  count.progress = [&](int64_t, int64_t) { return ++calls > 0; };
  must(workshop.run("mxfp8", count));
  fs::remove_all(workshop.to);
  ASSERT_GT(calls, 10);
  for (int stop = 1; stop <= calls; ++stop) {
    int left = stop;
    QuantizeOptions options;
    options.progress = [&](int64_t done, int64_t total) {
      EXPECT_LE(done, total);
      return --left > 0;
    };
    const auto result = workshop.run("mxfp8", options);
    ASSERT_FALSE(result) << stop;
    EXPECT_EQ(result.error().kind, ErrorKind::kCancelled);
    expect_nothing_left(workshop);
  }
}

TEST(QuantizeCheckpoint, RemovesFilesOfKilledProcess) {
  const Workshop workshop(plain());
  const pid_t child = ::fork();
  if (child == 0) {
    int calls = 0;
    QuantizeOptions options;
    options.progress = [&](int64_t, int64_t) { return ++calls < 5 || ::raise(SIGKILL) == 0; };
    (void)workshop.run("mxfp8", options);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  const std::string left = str(".quantized.partial-", child, "-0");
  ASSERT_THAT(names_in(workshop.folder.path()), ElementsAre(left, "plain"));
  ASSERT_TRUE(fs::exists(workshop.folder.path() + "/" + left + "/model.safetensors"));
  // Folders with similar names and links of that name belong to other programs.
  const std::string others[] = {".another.partial-1-0", ".quantized.partial-mine",
                                ".quantized.partial-"};
  for (const std::string& other : others)
    fs::create_directory(workshop.folder.path() + "/" + other);
  // A folder of that name without the mark belongs to another program, too.
  const std::string backup = ".quantized.partial-2024-01";
  fs::create_directory(workshop.folder.path() + "/" + backup);
  std::ofstream(workshop.folder.path() + "/" + backup + "/mine") << "precious";
  const std::string link = ".quantized.partial-1-1";
  fs::create_directory_symlink("plain", workshop.folder.path() + "/" + link);
  must(workshop.run("mxfp8"));
  EXPECT_THAT(
      names_in(workshop.folder.path()),
      UnorderedElementsAre(others[0], others[1], others[2], backup, link, "plain", "quantized"));
  EXPECT_EQ(content_of(workshop.folder.path() + "/" + backup + "/mine"), "precious");
  EXPECT_FALSE(fs::exists(workshop.to + "/.moracle-unfinished"));
  EXPECT_TRUE(fs::exists(workshop.from + "/model.safetensors"));
}

TEST(QuantizeCheckpoint, KeepsFilesOfOtherRunningProcess) {
  const Workshop workshop(plain());
  int calls = 0;
  QuantizeOptions options;
  options.progress = [&](int64_t, int64_t) {
    if (++calls == 5) must(workshop.run("fp8-per-channel"));
    return true;
  };
  // The first complete folder gets the name.
  const auto late = workshop.run("mxfp8", options);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().kind, ErrorKind::kIo);
  EXPECT_THAT(late.error().to_string(),
              HasSubstr(workshop.to + ": needs to be renamed from its partial folder"));
  EXPECT_THAT(names_in(workshop.folder.path()), ElementsAre("plain", "quantized"));
  expect_as_online(workshop.to, workshop.from, must(parse_online_scheme("fp8-per-channel")));
}

TEST(QuantizeCheckpoint, LeavesNoFilesWhenWeightIsNotFinite) {
  auto source = plain();
  source.set<uint16_t>(kUp + ".weight", 3 * 160 + 9, 0x7fc0);
  const Workshop workshop(source);
  expect_bad(
      workshop.run("fp8-per-tensor"),
      {workshop.from + "/model.safetensors: tensor '" + kUp + ".weight'", "element [3, 9] is nan"});
  expect_nothing_left(workshop);
}

TEST(QuantizeCheckpoint, LeavesNoFilesWhenCopiedTensorHoldsNan) {
  for (const char* tensor : {"model.embed_tokens.weight", "model.norm.weight"}) {
    auto source = plain();
    source.set<uint16_t>(tensor, 5, 0x7fc0);
    const Workshop workshop(source);
    expect_bad(workshop.run("fp8-per-tensor"),
               {workshop.from + "/model.safetensors: tensor '" + tensor + "'", "5", "is nan"});
    expect_nothing_left(workshop);
  }
}

TEST(QuantizeCheckpoint, LeavesNoFilesWhenSourceIsTruncated) {
  for (const int when : {0, 1, 3, 8}) {
    SCOPED_TRACE(when);
    const Workshop workshop(plain());
    const std::string file = workshop.from + "/model.safetensors";
    const Checkpoint source = must(Checkpoint::open(workshop.from));
    if (when == 0) fs::resize_file(file, 0);
    int calls = 0;
    QuantizeOptions options;
    options.progress = [&](int64_t, int64_t) {
      if (++calls == when) fs::resize_file(file, 100);
      return true;
    };
    expect_bad(
        quantize(source, must(QuantizationMap::parse("fp8-per-tensor")), workshop.to, options),
        {file + ": tensor '", "it now has at most"});
    expect_nothing_left(workshop);
  }
}

TEST(QuantizeCheckpoint, RejectsNonEmptyFolder) {
  const Workshop workshop(plain());
  fs::create_directory(workshop.to);
  std::ofstream(workshop.to + "/mine") << "precious";
  const auto refused = workshop.run("mxfp8");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr(workshop.to + ": needs a new or empty folder"));
  EXPECT_EQ(content_of(workshop.to + "/mine"), "precious");
  EXPECT_THAT(names_in(workshop.to), ElementsAre("mine"));
  // An empty folder is used as if it were absent.
  fs::remove(workshop.to + "/mine");
  must(workshop.run("mxfp8"));
  EXPECT_THAT(names_in(workshop.folder.path()), ElementsAre("plain", "quantized"));
}

TEST(QuantizeCheckpoint, RejectsImpossibleOutputPath) {
  Workshop workshop(plain());
  const std::string file = workshop.folder.write("file", "x"),
                    pipe = workshop.folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [to, part] : {std::pair{file, "it is a file"},
                                 {pipe, "it is a file"},
                                 {file + "/below", "does not exist"},
                                 {workshop.folder.path() + "/no/such", "does not exist"},
                                 {workshop.from, "it is inside"},
                                 {workshop.from + "/inside", "it is inside"},
                                 {std::string(), "the name is empty"}}) {
    workshop.to = to;
    const auto refused = workshop.run("mxfp8");
    ASSERT_FALSE(refused) << to;
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(refused.error().to_string(), HasSubstr(part)) << to;
  }
  EXPECT_THAT(names_in(workshop.folder.path()), ElementsAre("file", "pipe", "plain"));
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(QuantizeCheckpoint, RejectsDanglingLinkBeforeWork) {
  Workshop workshop(plain());
  fs::create_directory_symlink("nowhere", workshop.to);
  QuantizeOptions options;
  options.progress = [](int64_t, int64_t) {
    ADD_FAILURE() << "the work began";
    return true;
  };
  const auto refused = workshop.run("mxfp8", options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr("needs a new or empty folder; it is a broken link"));
  // A link to an empty folder is followed.
  fs::create_directory(workshop.folder.path() + "/nowhere");
  must(workshop.run("mxfp8"));
  EXPECT_TRUE(fs::exists(workshop.folder.path() + "/nowhere/model.safetensors"));
  EXPECT_TRUE(fs::is_symlink(workshop.to));
}

TEST(QuantizeCheckpoint, RejectsQuantizedSource) {
  const Workshop workshop(SyntheticCheckpoint::gptq());
  expect_unsupported(workshop.run("mxfp8"), {"needs unquantized weights for an online scheme; "
                                             "the file has int4-w4a16-g8"});
  expect_nothing_left(workshop);
}

// Loading may quantize what a quantized file left in 16 bits. Writing may not: the new file could
// not describe the other weights.
TEST(QuantizeCheckpoint, RejectsPatternsForQuantizedSource) {
  auto source = SyntheticCheckpoint::gptq();
  source.add_floats("model.layers.0.mlp.extra_proj.weight", {32, 32});
  const Workshop workshop(source);
  expect_unsupported(workshop.run("*.extra_proj=mxfp8"), {"the file has int4-w4a16-g8"});
  expect_nothing_left(workshop);
}

TEST(QuantizeCheckpoint, RejectsMapThatQuantizesNothing) {
  const Workshop workshop(plain());
  for (const char* map : {"none", "*.q_proj=none"}) {
    const auto refused = workshop.run(map);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().need, HasSubstr("at least one module to quantize"));
  }
  expect_nothing_left(workshop);
}

TEST(QuantizeCheckpoint, RejectsSchemesWithoutFileFormat) {
  const Workshop workshop(plain());
  for (const auto& [format, scheme] : {std::pair{"fp8", "fp8-per-channel"},
                                       {"fp8", "fp8-w8a16-block128x128"},
                                       {"fp8", "mxfp8"},
                                       {"modelopt", "fp8-per-block"},
                                       {"modelopt", "mxfp8-w8a16"}}) {
    QuantizeOptions options;
    options.format = format;
    const auto refused = workshop.run(scheme, options);
    ASSERT_FALSE(refused) << format << " " << scheme;
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
    EXPECT_THAT(refused.error().to_string(), HasSubstr(str("format ", format)));
  }
  QuantizeOptions options;
  options.format = "gguf";
  EXPECT_THAT(workshop.run("mxfp8", options).error().to_string(),
              HasSubstr("format: needs one of compressed-tensors, fp8, modelopt; it is 'gguf'"));
  options = {};
  options.max_shard_bytes = 0;
  EXPECT_THAT(workshop.run("mxfp8", options).error().to_string(), HasSubstr("max_shard_bytes"));
  expect_nothing_left(workshop);
}

TEST(CompressedTensorsMxfp8, RejectsOtherGroupOrTypeByKey) {
  const Workshop workshop(plain());
  must(workshop.run("mxfp8"));
  const auto config = json_of(workshop.to + "/config.json");
  const auto refuse = [&](const char* operand, const char* key, const nlohmann::json& value) {
    auto changed = config;
    changed["quantization_config"]["config_groups"]["group_0"][operand][key] = value;
    std::ofstream(workshop.to + "/config.json") << changed;
    expect_unsupported(Checkpoint::open(workshop.to),
                       {str("config_groups.group_0.", operand, ".", key), value.dump()});
  };
  for (const char* operand : {"weights", "input_activations"}) {
    refuse(operand, "group_size", 16);
    refuse(operand, "strategy", "channel");
    refuse(operand, "num_bits", 4);
    refuse(operand, "type", "int");
  }
  refuse("input_activations", "dynamic", false);
}

// The library can multiply such a matrix after quantizing it at load. No file format holds it.
TEST(QuantizeCheckpoint, RejectsMxfp8WhenGroupsDoNotDivideColumns) {
  const Workshop workshop(SyntheticCheckpoint::plain());
  expect_unsupported(workshop.run("mxfp8"),
                     {"model.safetensors", "down_proj'", "a multiple of 32 columns", "it has 16"});
  expect_nothing_left(workshop);
}

TEST(QuantizeCheckpoint, RejectsFusedExpertsAndWritesOtherModules) {
  const TemporaryFolder folder;
  const std::string to = folder.path() + "/to";
  const Checkpoint fused = must(Checkpoint::open(testing::golden_dir() + "/architectures/gpt_oss"));
  expect_unsupported(quantize(fused, must(QuantizationMap::parse("int8-per-channel")), to),
                     {"tensor 'model.layers.0.mlp.experts.", "one tensor per expert",
                      "it has all experts of a layer"});
  EXPECT_TRUE(fs::is_empty(folder.path()));
  must(quantize(fused, must(QuantizationMap::parse("*.experts.*=none,int8-per-channel")), to));
  const Checkpoint read = must(Checkpoint::open(to));
  const DescribedWeights experts = must(read.moe_layer(0));
  EXPECT_EQ(name(experts.spec.scheme), "bf16");
  expect_equal(experts.w13, must(fused.moe_layer(0)).w13);
  expect_equal(must(read.linear(kQkv)),
               must(quantize(must(fused.linear(kQkv)), must(parse_online_scheme("int8-w8a8")))));
}

TEST(SafetensorsWriter, RequiresEveryByteOfEveryTensor) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a.safetensors";
  {
    auto writer =
        must(SafetensorsWriter::create(path, {{"b", DType::kU8, {3}}, {"a", DType::kF32, {}}}));
    const std::vector<std::byte> bytes(4, std::byte{1});
    EXPECT_FALSE(writer.write("b", bytes));
    EXPECT_FALSE(writer.write("c", bytes));
    EXPECT_FALSE(writer.write("a", bytes, 1));
    EXPECT_TRUE(writer.write("a", bytes));
    EXPECT_FALSE(writer.finish());
    EXPECT_TRUE(writer.write("b", std::span(bytes).first(2), 1));
    EXPECT_TRUE(writer.write("b", std::span(bytes).first(1), 0));
    EXPECT_TRUE(writer.finish());
    EXPECT_EQ(static_cast<int64_t>(fs::file_size(path)), writer.file_bytes());
  }
  const auto file = must(testing::SafetensorsImage::open(path));
  EXPECT_EQ(file.tensors().at("b").shape, std::vector<int64_t>{3});
  EXPECT_EQ(file.tensors().at("b").data[2], std::byte{1});
  expect_error(SafetensorsWriter::create(path, {}), ErrorKind::kIo, {path, "a new file"});
  expect_error(SafetensorsWriter::create(folder.path() + "/no/file", {}), ErrorKind::kIo,
               {"/no/file"});
}

TEST(Shards, FillToLimitWithAtLeastOneItem) {
  const std::vector<int64_t> bytes = {5, 5, 11, 1, 9, 1};
  EXPECT_THAT(plan_shards(bytes, 10),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3, 4), ElementsAre(5)));
  EXPECT_THAT(plan_shards(bytes, 100).size(), 1u);
  EXPECT_EQ(shard_name(0, 1), "model.safetensors");
  EXPECT_EQ(shard_name(1, 12), "model-00002-of-00012.safetensors");
  EXPECT_EQ(shard_name(123'455, 123'456), "model-123456-of-123456.safetensors");
}

}  // namespace
}  // namespace moracle::testing::quantize_test
