#include "serve/api/unsupported_paths.h"

namespace moracle::serve {
namespace {

struct Unsupported {
  std::string_view path;
  const char* why;
};

constexpr const char* kNoVectors =
    "this server generates text; its models are not trained to give vectors of texts";
constexpr const char* kNoScores =
    "this server generates text; its models have no head that scores or ranks texts";
constexpr const char* kNoAudio = "this server reads and writes text, no audio";
constexpr const char* kNoImages = "this server reads and writes text, no images or videos";
constexpr const char* kNoFiles = "this server stores no files and runs no jobs";
constexpr const char* kNoThreads =
    "this server keeps no conversations; /v1/responses continues one by previous_response_id";

constexpr Unsupported kUnsupported[] = {
    {"/v1/embeddings", kNoVectors},
    {"/embeddings", kNoVectors},
    {"/pooling", kNoVectors},
    {"/v1/pooling", kNoVectors},
    {"/rerank", kNoScores},
    {"/v1/rerank", kNoScores},
    {"/v2/rerank", kNoScores},
    {"/score", kNoScores},
    {"/v1/score", kNoScores},
    {"/classify", kNoScores},
    {"/v1/classify", kNoScores},
    {"/v1/moderations", kNoScores},
    {"/v1/audio/", kNoAudio},
    {"/v1/realtime", kNoAudio},
    {"/v1/images/", kNoImages},
    {"/v1/videos", kNoImages},
    {"/v1/files", kNoFiles},
    {"/v1/uploads", kNoFiles},
    {"/v1/batches", kNoFiles},
    {"/v1/messages/batches", kNoFiles},
    {"/v1/fine_tuning/", kNoFiles},
    {"/v1/vector_stores", kNoFiles},
    {"/v1/assistants", kNoThreads},
    {"/v1/threads", kNoThreads},
    {"/v1/conversations", kNoThreads},
};

}  // namespace

const char* why_unsupported(std::string_view path) {
  for (const Unsupported& each : kUnsupported) {
    if (!path.starts_with(each.path)) continue;
    const std::string_view rest = path.substr(each.path.size());
    if (each.path.ends_with('/') || rest.empty() || rest[0] == '/') return each.why;
  }
  return nullptr;
}

}  // namespace moracle::serve
