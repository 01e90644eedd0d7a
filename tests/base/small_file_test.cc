// Tests reading and writing small files whole. Folders, pipes and devices are rejected.
#include "base/small_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "base/json/json_text.h"
#include "support/temporary_folder.h"

namespace moracle::small_file_test {
namespace {

class SmallFile : public ::testing::Test {
 protected:
  std::string write(const std::string& content) const { return temporary_.write("file", content); }

  const testing::TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

TEST_F(SmallFile, ReadsWholeFile) {
  const std::string content = std::string("a\0b\n", 4) + std::string(1'000'000, 'x');
  for (const std::string& text : {std::string(), content}) {
    const auto read = read_small_file(write(text));
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_EQ(*read, text);
  }
}

TEST_F(SmallFile, RejectsFileBeyondSizeLimit) {
  const std::string path = write("12345");
  EXPECT_TRUE(read_small_file(path, 5));
  const auto refused = read_small_file(path, 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().to_string(), path + ": needs at most 4 bytes; it is larger");
}

TEST_F(SmallFile, RejectsFoldersPipesAndDevicesWithoutWaiting) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {folder_, pipe, std::string("/dev/zero")}) {
    const auto refused = read_small_file(path);
    ASSERT_FALSE(refused) << path;
    EXPECT_EQ(refused.error().to_string(),
              path + ": needs a regular file; it is not a regular file");
  }
}

TEST_F(SmallFile, MissingFileGivesSystemError) {
  std::filesystem::create_symlink("nowhere", folder_ + "/dangling");
  for (const std::string name : {"/absent", "/dangling"}) {
    const auto refused = read_small_file(folder_ + name);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kIo);
    EXPECT_NE(refused.error().to_string().find(name + ": needs a readable file; No such file"),
              std::string::npos);
  }
}

TEST_F(SmallFile, NewFileNeverReplacesAnything) {
  const std::string pipe = folder_ + "/pipe", link = folder_ + "/link", fresh = folder_ + "/fresh";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(fresh, link);
  const std::string old = write("old");
  for (const std::string& path : {pipe, link, old, folder_, folder_ + "/none/file"})
    EXPECT_FALSE(write_new_file(path, "new")) << path;
  EXPECT_FALSE(std::filesystem::exists(fresh)) << "it followed the link";
  EXPECT_EQ(*read_small_file(old), "old");
  ASSERT_TRUE(write_new_file(fresh, "new"));
  EXPECT_EQ(*read_small_file(fresh), "new");
}

TEST_F(SmallFile, OnlyRegularAndMissingFilesAreReplaceable) {
  const std::string pipe = folder_ + "/pipe", link = folder_ + "/link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string old = write("old");
  std::filesystem::create_symlink(old, link);
  EXPECT_TRUE(is_replaceable(old));
  EXPECT_TRUE(is_replaceable(folder_ + "/absent"));
  for (const std::string& path : {pipe, link, folder_, std::string("/dev/null")})
    EXPECT_FALSE(is_replaceable(path)) << path;
}

TEST(ReadToEnd, ReadsPipeUntilWriterCloses) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::thread writer([&] {
    for (const char* part : {"one ", "two"}) EXPECT_GT(::write(ends[1], part, 3), 0);
    ::close(ends[1]);
  });
  const auto read = read_to_end(ends[0], "-", 100);
  writer.join();
  ::close(ends[0]);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, "onetwo");
}

TEST(ReadToEnd, StopsOnRequestWhilePipeIsIdle) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  int asked = 0;
  const auto read = read_to_end(ends[0], "-", 100, [&](int64_t, int64_t) { return ++asked < 3; });
  ::close(ends[0]);
  ::close(ends[1]);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, ErrorKind::kCancelled);
}

TEST(JsonText, BoundsNesting) {
  const auto nested = [](int levels, char open, char close) {
    return std::string(levels, open) + std::string(levels, close);
  };
  EXPECT_TRUE(check_json_text(nested(64, '[', ']'), "f"));
  EXPECT_TRUE(check_json_text("[\"" + nested(1000, '[', ']') + "\\\"[[\"]", "f"));
  for (const std::string& text : {nested(65, '[', ']'), nested(100'000, '{', '}'),
                                  "[\"\\\\\"," + nested(64, '[', ']') + "]"}) {
    const Status refused = check_json_text(text, "f");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().to_string(),
              "f: needs JSON of at most 64 levels of nesting; it has more");
  }
}

TEST(JsonText, RejectsNulByte) {
  EXPECT_FALSE(check_json_text(std::string_view("{}\0", 3), "f"));
}

}  // namespace
}  // namespace moracle::small_file_test
