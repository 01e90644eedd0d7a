// Tests loading and unloading of adapters in a running server, and restrictions on their files.
#include "serve/api/adapters.h"

#include <gmock/gmock.h>

#include "base/text.h"
#include "checkpoint/safetensors_writer.h"
#include "serve/engine_fixture.h"
#include "support/temporary_folder.h"

namespace moracle::serve::engine_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTensorFile = "adapter_model.safetensors";
constexpr const char* kConfigFile = "adapter_config.json";

// Writes a PEFT adapter for all experts of the first layer. Different values give different texts.
void write_adapter(const std::string& folder, float value) {
  fs::create_directories(folder);
  std::vector<testing::TensorBytes> tensors;
  for (int expert = 0; expert < 16; ++expert) {
    const auto add = [&](const char* half, int64_t rows, int64_t cols, float each) {
      tensors.push_back({str("base_model.model.model.layers.0.mlp.experts.", expert,
                             ".down_proj.lora_", half, ".weight"),
                         DType::kF32,
                         {rows, cols},
                         testing::bytes_of(std::vector<float>(rows * cols, each))});
    };
    add("A", 2, 128, 0.3F);
    add("B", 256, 2, value);
  }
  must(testing::write_safetensors(folder + "/" + kTensorFile, tensors));
  std::ofstream(folder + "/" + kConfigFile) << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})";
}

class ServedAdapters : public EngineOnSmallModel {
 protected:
  std::string folder(const std::string& name) const { return root_.path() + "/" + name; }
  Status load_adapter(Engine& engine, const std::string& name, const std::string& path) {
    std::promise<Status> done;
    adapters_.load(name, path, options_, kFolder, engine,
                   [&](const Status& status) { done.set_value(status); });
    return done.get_future().get();
  }
  std::string text_with(Engine& engine, const std::string& adapter) {
    Waiting waiting;
    Job one = job("And the LORD", 12, 1);
    one.adapter = adapters_.find(adapter).value_or(-1);
    one.sink = waiting.sink();
    engine.submit({one});
    const Text made = waiting.get();
    EXPECT_EQ(made.last.finish, Finish::kLength) << made.last.message;
    return made.text;
  }

  testing::TemporaryFolder root_;
  Adapters adapters_{root_.path()};
};

// The unload happens during the other adapter's load.
TEST_F(ServedAdapters, AdapterUnloadedWhileAnotherLoadsStaysUnloaded) {
  write_adapter(folder("x"), 0.3F);
  write_adapter(folder("y"), -0.3F);
  Model model = load();
  const auto engine = start(model, 8);
  ASSERT_TRUE(load_adapter(*engine, "x", "x"));
  const std::string with_x = text_with(*engine, "x");
  bool unloaded = false;
  options_.progress = [&](int64_t, int64_t) {
    if (!std::exchange(unloaded, true)) must(adapters_.unload("x", *engine));
    return true;
  };
  ASSERT_TRUE(load_adapter(*engine, "y", "y"));
  options_.progress = {};
  EXPECT_TRUE(unloaded);
  EXPECT_THAT(adapters_.names(), ElementsAre("y"));
  EXPECT_FALSE(adapters_.find("x"));
  ASSERT_TRUE(load_adapter(*engine, "x", "x"));
  EXPECT_THAT(adapters_.names(), ElementsAre("x", "y"));
  EXPECT_EQ(text_with(*engine, "x"), with_x);
}

TEST_F(ServedAdapters, LoadReadsNoOtherAdapterAgain) {
  for (const auto& [name, value] : {std::pair("x", 0.3F), {"y", -0.3F}, {"z", 0.5F}})
    write_adapter(folder(name), value);
  Model model = load();
  const auto engine = start(model, 8);
  ASSERT_TRUE(load_adapter(*engine, "x", "x"));
  ASSERT_TRUE(load_adapter(*engine, "y", "y"));
  const std::string with_x = text_with(*engine, "x"), with_y = text_with(*engine, "y");
  ASSERT_NE(with_x, with_y);
  write_adapter(folder("x"), 0.7F);  // overwrites the file in place
  fs::remove_all(folder("y"));
  ASSERT_TRUE(load_adapter(*engine, "z", "z"));
  EXPECT_EQ(text_with(*engine, "x"), with_x);
  EXPECT_EQ(text_with(*engine, "y"), with_y);
  // A reload reads the new values.
  ASSERT_TRUE(adapters_.unload("x", *engine));
  ASSERT_TRUE(load_adapter(*engine, "x", "x"));
  EXPECT_NE(text_with(*engine, "x"), with_x);
  EXPECT_EQ(text_with(*engine, "y"), with_y);
}

TEST_F(ServedAdapters, RejectsAdapterAfterModelFilesChangeUntilReload) {
  const std::string own = root_.path() + "/model";
  fs::copy(kFolder, own, fs::copy_options::recursive);
  write_adapter(folder("x"), 0.3F);
  Model model = must(Model::load(must(Checkpoint::open(own)), options_));
  const auto engine = start(model, 8);
  const auto load_x = [&] {
    std::promise<Status> done;
    adapters_.load("x", "x", options_, own, *engine,
                   [&](const Status& status) { done.set_value(status); });
    return done.get_future().get();
  };
  const std::string file = own + "/model.safetensors";
  fs::copy_file(kFolder + "/model.safetensors", file + ".new");
  fs::rename(file + ".new", file);
  const Status refused = load_x();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("reload the model first; they have changed"));
  EXPECT_TRUE(adapters_.names().empty());
  std::promise<Status> reloaded;
  engine->reload(own, [&](const Status& status) { reloaded.set_value(status); });
  ASSERT_TRUE(reloaded.get_future().get());
  EXPECT_TRUE(load_x());
}

TEST_F(ServedAdapters, RejectsSymlinkOutOfAdapterFolder) {
  const testing::TemporaryFolder outside;
  write_adapter(outside.path(), 0.3F);
  const std::string secret = outside.write("secret", "8 bytes and more of a secret");
  const std::string first_bytes = "2338324182462505016";
  Model model = load();
  const auto engine = start(model, 8);
  const std::string targets[] = {secret, outside.path() + "/" + kTensorFile,
                                 outside.path() + "/" + kConfigFile, "/nowhere", "../../secret"};
  for (const char* link : {kTensorFile, kConfigFile}) {
    for (const std::string& target : targets) {
      write_adapter(folder("x"), 0.3F);
      fs::remove(folder("x") + "/" + link);
      fs::create_symlink(target, folder("x") + "/" + link);
      const Status done = load_adapter(*engine, "x", "x");
      ASSERT_FALSE(done) << link << " to " << target;
      const std::string text = done.error().to_string();
      EXPECT_THAT(text, Not(HasSubstr(outside.path()))) << link << " to " << target;
      // Bytes of the secret, read as a header length.
      EXPECT_THAT(text, Not(HasSubstr(first_bytes))) << link << " to " << target;
      EXPECT_THAT(text, HasSubstr(fs::exists(target) ? "a link that leaves the folder" : link))
          << link << " to " << target;
      fs::remove_all(folder("x"));
    }
  }
  // Symbolic links inside the folder are allowed, as in Hugging Face's cache.
  write_adapter(folder("blobs"), 0.3F);
  fs::create_directories(folder("x"));
  for (const char* link : {kTensorFile, kConfigFile})
    fs::create_symlink(std::string("../blobs/") + link, folder("x") + "/" + link);
  EXPECT_TRUE(load_adapter(*engine, "x", "x"));
}

TEST_F(ServedAdapters, ErrorsRevealNoPathOutsideAdapterFolder) {
  write_adapter(folder("x"), 0.3F);
  std::ofstream(folder("x") + "/" + kTensorFile) << "short";
  Model model = load();
  const auto engine = start(model, 8);
  const Status done = load_adapter(*engine, "x", "x");
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().file, std::string("x/") + kTensorFile);
  EXPECT_THAT(done.error().to_string(), Not(HasSubstr(root_.path())));
}

TEST_F(ServedAdapters, RejectsLongOrUnprintableNames) {
  write_adapter(folder("x"), 0.3F);
  Model model = load();
  const auto engine = start(model, 8);
  const std::string longest(256, 'n');
  for (const std::string& name :
       {std::string(), longest + "n", std::string(100'000, 'n'), std::string("a\nb"),
        std::string("\xff"), std::string("a\0b", 3)}) {
    const Status done = load_adapter(*engine, name, "x");
    ASSERT_FALSE(done) << name.size();
    EXPECT_THAT(done.error().to_string(),
                HasSubstr("lora_name: needs a printable name of 1 to 256 bytes"));
    EXPECT_LT(done.error().to_string().size(), 400u);
    EXPECT_FALSE(adapters_.add(name, nullptr));
  }
  EXPECT_TRUE(load_adapter(*engine, longest, "x"));
  EXPECT_THAT(load_adapter(*engine, longest, "x").error().to_string(),
              HasSubstr("a name that is not in use"));
}

}  // namespace
}  // namespace moracle::serve::engine_test
