#include "models/state/sequence_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/file.h"
#include "base/out_of_memory.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "models/decoder/model_state.h"
#include "models/ranks.h"

namespace moracle {
namespace sequence_file {
namespace {

using Keys = KvCache::State::Keys;

// The file: a Head, the model's identity, the token ids, whole pages, the recurrent state, and a
// checksum of everything before it.
struct Head {
  char magic[8] = {'M', 'O', 'R', 'A', 'S', 'E', 'Q', '1'};
  int64_t identity_bytes = 0;
  int64_t num_tokens = 0;
  int64_t long_keys = 0;  // see KvCache::State::keys
};

struct Sizes {
  int64_t page = 0, page_bytes = 0, state_bytes = 0;
  int64_t pages_of(int64_t tokens) const { return (tokens + page - 1) / page; }
  int64_t file_bytes(const Head& head) const {
    return static_cast<int64_t>(sizeof(Head)) + head.identity_bytes + head.num_tokens * 4 +
           pages_of(head.num_tokens) * page_bytes + state_bytes + 8;
  }
};

Sizes sizes_of(Model& model) {
  const Model::State& m = ModelAccess::state(model);
  return {m.cache_pool->page(), static_cast<int64_t>(m.cache_pool->page_bytes()),
          m.state_pool ? static_cast<int64_t>(m.state_pool->page_bytes()) : 0};
}

// All that keys, values and states depend on, as a text that errors can quote line by line.
std::string identity(Model& model, const SequenceSource& source) {
  const Sizes sizes = sizes_of(model);
  std::string text;
  for (const Fact& fact : facts_of_sequences(source.checkpoint, source.options,
                                             open_adapters(source.checkpoint, source.options)))
    text += str(fact.what, ": ", fact.value, "\n");
  return text +
         str("adapter: ", source.adapter < 0 ? "none" : std::to_string(source.adapter),
             "\ncaches: ", kv_cache_name(ModelAccess::state(model).cache_dtype), " on ",
             source.options.device.platform == Platform::kCpu ? "cpu" : name(source.options.device),
             ", pages of ", sizes.page, " positions and ", sizes.page_bytes, " bytes, states of ",
             sizes.state_bytes, " bytes\n");
}

// The first line in which two identities differ.
Error other_model(const std::string& path, std::string_view found, std::string_view need) {
  const auto at = std::mismatch(found.begin(), found.end(), need.begin(), need.end());
  const auto line_at = [](std::string_view text, int64_t position) {
    const size_t from = text.rfind('\n', static_cast<size_t>(position));
    const std::string_view rest = text.substr(from == text.npos ? 0 : from + 1);
    return std::string(rest.substr(0, rest.find('\n')));
  };
  const int64_t place = std::max<int64_t>(at.second - need.begin() - 1, 0);
  return {ErrorKind::kBadFile, path, "prompt cache",
          str("a file of this model with these options (", line_at(need, place),
              "); name another file or delete it"),
          "it was written with other ones"};
}

Error bad(const std::string& path, std::string need, std::string fact) {
  return {ErrorKind::kBadFile, path, "prompt cache", std::move(need), std::move(fact)};
}

// A file that takes its name when it is complete.
class Writer {
 public:
  explicit Writer(std::string path)
      : path_(std::move(path)), unfinished_(str(path_, ".", ::getpid(), ".part")) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(unfinished_.c_str());
  }

  Status open() {
    fd_ = ::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return fd_ < 0 ? failed() : Status();
  }
  Status write(std::span<const std::byte> bytes) {
    sum_ = checksum(bytes, sum_);
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return failed();
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return {};
  }
  Status finish() {
    const uint64_t sum = sum_;
    MORACLE_CHECK(write(std::as_bytes(std::span(&sum, 1))));
    if (::fsync(fd_) != 0) return failed();
    if (::rename(unfinished_.c_str(), path_.c_str()) != 0) return failed();
    ::close(std::exchange(fd_, -1));
    return {};
  }

 private:
  Error failed() const {
    return {ErrorKind::kIo, path_, "prompt cache", "to be written", std::strerror(errno)};
  }
  const std::string path_, unfinished_;
  int fd_ = -1;
  uint64_t sum_ = 0;
};

// Reads the parts of a file in order, and sums them.
class Reader {
 public:
  explicit Reader(const File& file) : file_(file) {}
  Status read(std::span<std::byte> to) {
    MORACLE_CHECK(file_.read(at_, to));
    at_ += to.size();
    sum_ = checksum(to, sum_);
    return {};
  }
  uint64_t sum() const { return sum_; }

 private:
  const File& file_;
  uint64_t at_ = 0, sum_ = 0;
};

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Status save(Model& model, const SequenceSource& source, const KeptSequence& sequence,
            const std::string& path) {
  KvCache::State& cache = ModelAccess::state(const_cast<KvCache&>(sequence.cache));
  if (!is_replaceable(path))
    return bad(path, "a regular file, or a new one", "it is something else");
  if (cache.length < 1 || cache.length != static_cast<int64_t>(sequence.ids.size()) ||
      cache.keys == Keys::kMixed) {
    return Error{ErrorKind::kInvalidArgument, "", "kept sequence",
                 "a sequence with tokens, and the ids of all of them",
                 str("it has ", cache.length, " tokens and ", sequence.ids.size(), " ids")};
  }
  const Sizes sizes = sizes_of(model);
  const std::string text = identity(model, source);
  Head head;
  head.identity_bytes = static_cast<int64_t>(text.size());
  head.num_tokens = cache.length;
  head.long_keys = cache.keys == Keys::kLong ? 1 : 0;
  Writer file(path);
  MORACLE_CHECK(file.open());
  MORACLE_CHECK(file.write(bytes_of(head)));
  MORACLE_CHECK(file.write(std::as_bytes(std::span(text))));
  MORACLE_CHECK(file.write(std::as_bytes(std::span(sequence.ids))));
  Device& device = model.device();
  const DeviceLock lock = device.lock();
  MORACLE_CHECK(device.synchronize());
  std::vector<std::byte> host(static_cast<size_t>(std::max(sizes.page_bytes, sizes.state_bytes)));
  const auto write = [&](const std::byte* from, int64_t bytes) -> Status {
    const std::span<std::byte> part = std::span(host).first(static_cast<size_t>(bytes));
    MORACLE_CHECK(device.read(part.data(), from, part.size()));
    return file.write(part);
  };
  for (int64_t i = 0; i < sizes.pages_of(cache.length); ++i)
    MORACLE_CHECK(write(cache.pages[static_cast<size_t>(i)], sizes.page_bytes));
  if (sizes.state_bytes > 0) MORACLE_CHECK(write(cache.recurrent.before(), sizes.state_bytes));
  return file.finish();
}

Result<KeptSequence> load(Model& model, const SequenceSource& source, const std::string& path,
                          int64_t capacity) {
  const Sizes sizes = sizes_of(model);
  const bool has_long_keys = ModelAccess::state(model).spec.short_context > 0;
  MORACLE_TRY(const File file, File::open(path));
  if (file.size() < sizeof(Head)) return bad(path, "a prompt cache", "it is too short");
  Reader reader(file);
  Head head;
  MORACLE_CHECK(reader.read(bytes_of(head)));
  if (std::memcmp(head.magic, Head().magic, sizeof(head.magic)) != 0)
    return bad(path, "a prompt cache that this version reads", "its first bytes are others");
  // Check all sizes before any memory is taken for them.
  const std::string need = identity(model, source);
  constexpr int64_t kMostIdentity = 1 << 20;
  if (head.identity_bytes < 1 || head.identity_bytes > kMostIdentity ||
      static_cast<uint64_t>(head.identity_bytes) > file.size())
    return bad(path, "a description of its model", str("it has ", head.identity_bytes, " bytes"));
  std::string found(static_cast<size_t>(head.identity_bytes), ' ');
  MORACLE_CHECK(reader.read(std::as_writable_bytes(std::span(found))));
  if (found != need) return other_model(path, found, need);
  if (head.num_tokens < 1 || head.num_tokens > model.max_context())
    return bad(path, str("1 to ", model.max_context(), " tokens"), str("it has ", head.num_tokens));
  if (head.long_keys < 0 || head.long_keys > (has_long_keys ? 1 : 0))
    return bad(path, "keys for a short or a long context", str("it says ", head.long_keys));
  if (file.size() != static_cast<uint64_t>(sizes.file_bytes(head)))
    return bad(path, str(sizes.file_bytes(head), " bytes for ", head.num_tokens, " tokens"),
               str("it has ", file.size()));
  std::vector<int32_t> ids(static_cast<size_t>(head.num_tokens));
  MORACLE_CHECK(reader.read(std::as_writable_bytes(std::span(ids))));
  for (const int32_t id : ids) {
    if (id < 0 || id >= model.vocab_size())
      return bad(path, str("token ids below ", model.vocab_size()), str("it has ", id));
  }
  capacity = std::clamp(capacity, head.num_tokens, model.max_context());
  MORACLE_TRY(KvCache made, model.make_cache(capacity));
  KvCache::State& cache = ModelAccess::state(made);
  Device& device = model.device();
  const DeviceLock lock = device.lock();
  MORACLE_CHECK(cache.pool->grow(cache.pages, head.num_tokens));
  std::vector<std::byte> host(static_cast<size_t>(std::max(sizes.page_bytes, sizes.state_bytes)));
  const auto read = [&](std::byte* to, int64_t bytes) -> Status {
    const std::span<std::byte> part = std::span(host).first(static_cast<size_t>(bytes));
    MORACLE_CHECK(reader.read(part));
    MORACLE_CHECK(device.upload(to, part.data(), part.size()));
    return device.synchronize();  // the next part takes the same host memory
  };
  for (std::byte* const page : cache.pages) MORACLE_CHECK(read(page, sizes.page_bytes));
  if (sizes.state_bytes > 0) {
    MORACLE_TRY(std::byte* const state, cache.recurrent.restore_new());
    MORACLE_CHECK(read(state, sizes.state_bytes));
  }
  const uint64_t want = reader.sum();
  uint64_t sum = 0;
  MORACLE_CHECK(reader.read(bytes_of(sum)));
  if (sum != want) return bad(path, "the bytes that were written", "its checksum differs");
  cache.length = head.num_tokens;
  if (has_long_keys) cache.tokens = ids;
  cache.keys = head.long_keys != 0 ? Keys::kLong : Keys::kShort;
  return KeptSequence{std::move(made), std::move(ids)};
}

}  // namespace
}  // namespace sequence_file

Status save_sequence(Model& model, const SequenceSource& source, const KeptSequence& sequence,
                     const std::string& path) {
  return or_out_of_memory(path, [&] { return sequence_file::save(model, source, sequence, path); });
}

Result<KeptSequence> load_sequence(Model& model, const SequenceSource& source,
                                   const std::string& path, int64_t capacity) {
  return or_out_of_memory(path, [&] { return sequence_file::load(model, source, path, capacity); });
}

Result<int64_t> keep_beginning(KeptSequence& kept, std::span<const int32_t> prompt) {
  if (static_cast<int64_t>(kept.ids.size()) != kept.cache.length()) {
    return Error{ErrorKind::kInvalidArgument, "", "kept sequence",
                 str("the ids of the ", kept.cache.length(), " tokens in its cache"),
                 str("it has ", kept.ids.size())};
  }
  const std::span<const int32_t> before_last = prompt.first(prompt.size() - 1);
  const auto end =
      std::mismatch(kept.ids.begin(), kept.ids.end(), before_last.begin(), before_last.end());
  int64_t shared = end.first - kept.ids.begin();
  if (!kept.cache.truncate(shared)) {  // recurrent layers keep the state of few lengths
    shared = 0;
    MORACLE_CHECK(kept.cache.truncate(shared));
  }
  kept.ids.resize(static_cast<size_t>(shared));
  return shared;
}

Result<int64_t> read_prompt(Model& model, std::span<const int32_t> prompt, KeptSequence& kept,
                            int32_t adapter, const Progress& progress) {
  if (prompt.empty()) {
    return Error{ErrorKind::kInvalidArgument, "", "prompt", "at least one token", "it is empty"};
  }
  MORACLE_TRY(const int64_t reused, keep_beginning(kept, prompt));
  const auto end = static_cast<int64_t>(prompt.size()) - 1;
  for (int64_t done = reused; done < end;) {
    const int64_t count = std::min(model.max_num_tokens(), end - done);
    const std::span<const int32_t> chunk =
        prompt.subspan(static_cast<size_t>(done), static_cast<size_t>(count));
    const Model::Step step{chunk, &kept.cache, adapter};
    MORACLE_CHECK(model.forward({&step, 1}));
    kept.ids.insert(kept.ids.end(), chunk.begin(), chunk.end());
    done += count;
    if (progress && !progress(done, end))
      return Error{ErrorKind::kCancelled, "", "prompt", "", "it was cancelled"};
  }
  return reused;
}

}  // namespace moracle
