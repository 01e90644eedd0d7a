#include "serve/answers/messages_answer.h"

namespace moracle::serve {
namespace {

using PartKind = AnswerPart::Kind;

// A block without its text, as a stream begins it.
Json open_block(PartKind kind, const std::string& id, const std::string& name) {
  if (kind == PartKind::kText) return {{"type", "text"}, {"text", ""}};
  if (kind == PartKind::kReasoning)
    return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  return {{"type", "tool_use"}, {"id", id}, {"name", name}, {"input", Json::object()}};
}

Json whole_block(const AnswerPart& part) {
  Json block = open_block(part.kind, part.id, part.name);
  if (part.kind == PartKind::kText) block["text"] = part.text;
  if (part.kind == PartKind::kReasoning) block["thinking"] = part.text;
  if (part.kind == PartKind::kCall) {
    Json input = Json::parse(part.text, nullptr, /*allow_exceptions=*/false);
    if (input.is_object()) block["input"] = std::move(input);
  }
  return block;
}

Json block_delta(const AnswerPiece& piece) {
  if (piece.kind == PartKind::kText) return {{"type", "text_delta"}, {"text", piece.text}};
  if (piece.kind == PartKind::kReasoning)
    return {{"type", "thinking_delta"}, {"thinking", piece.text}};
  return {{"type", "input_json_delta"}, {"partial_json", piece.text}};
}

}  // namespace

MessagesAnswer::MessagesAnswer(const GenerationRequest& request, std::shared_ptr<Exchange> exchange)
    : Answer(request, std::move(exchange)),
      id_(new_id("msg_")),
      model_(request.model),
      fills_context_(request.fills_context) {}

Json MessagesAnswer::usage() const {
  const Choice& choice = choices_[0];
  return {{"input_tokens", choice.prompt_tokens - choice.reused_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", choice.reused_tokens},
          {"output_tokens", choice.new_tokens},
          {"output_tokens_details", {{"thinking_tokens", choice.reasoning_tokens}}}};
}

const char* MessagesAnswer::stop_reason() const {
  const Choice& choice = choices_[0];
  if (choice.finish == Finish::kLength)
    return fills_context_ ? "model_context_window_exceeded" : "max_tokens";
  if (choice.has_calls) return "tool_use";
  return choice.stop_string.empty() ? "end_turn" : "stop_sequence";
}

Json MessagesAnswer::stop_string() const {
  const bool is_reason = std::string_view(stop_reason()) == "stop_sequence";
  return is_reason ? Json(choices_[0].stop_string) : Json();
}

Json MessagesAnswer::message(Json content) const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model_},
          {"content", std::move(content)},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", usage()}};
}

void MessagesAnswer::send_whole() {
  Json content = Json::array();
  for (const AnswerPart& part : choices_[0].parts) content.push_back(whole_block(part));
  Json json = message(std::move(content));
  json["stop_reason"] = stop_reason();
  json["stop_sequence"] = stop_string();
  exchange().reply({.body = dump(json)});
}

void MessagesAnswer::send_event(const char* type, Json fields) {
  Json json = {{"type", type}};
  json.update(fields);
  exchange().write(std::string("event: ") + type + "\ndata: " + dump(json) + "\n\n");
}

void MessagesAnswer::start() {
  if (!start_stream()) return;
  Json json = message(Json::array());
  json["usage"]["output_tokens"] = 0;
  json["usage"].erase("output_tokens_details");
  send_event("message_start", {{"message", std::move(json)}});
}

void MessagesAnswer::send(size_t, const Event&, std::span<const AnswerPiece> pieces) {
  start();
  for (const AnswerPiece& piece : pieces) {
    if (piece.begins) {
      close_block();
      is_block_open_ = true;
      send_event("content_block_start",
                 {{"index", num_blocks_++},
                  {"content_block", open_block(piece.kind, piece.id, piece.name)}});
    }
    if (!piece.text.empty())
      send_event("content_block_delta",
                 {{"index", num_blocks_ - 1}, {"delta", block_delta(piece)}});
  }
}

void MessagesAnswer::close_block() {
  if (!std::exchange(is_block_open_, false)) return;
  send_event("content_block_stop", {{"index", num_blocks_ - 1}});
}

void MessagesAnswer::finish_stream() {
  close_block();
  send_event("message_delta",
             {{"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_string()}}},
              {"usage", usage()}});
  send_event("message_stop", Json::object());
  exchange().end();
}

void MessagesAnswer::send_failure(const ApiError& error) {
  close_block();
  Json json = to_json(error, ErrorForm::kAnthropic);
  json["usage"] = usage();
  send_event("error", std::move(json));
}

}  // namespace moracle::serve
