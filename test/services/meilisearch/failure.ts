/** The errors of Meilisearch: each code with its status and type, as answers and as ends of tasks. */
const CODES = {
  missing_authorization_header: [401, 'auth'],
  missing_master_key: [401, 'auth'],
  invalid_api_key: [403, 'auth'],
  index_not_found: [404, 'invalid_request'],
  document_not_found: [404, 'invalid_request'],
  task_not_found: [404, 'invalid_request'],
  invalid_task_uids: [400, 'invalid_request'],
  missing_task_filters: [400, 'invalid_request'],
  invalid_index_uid: [400, 'invalid_request'],
  index_already_exists: [409, 'invalid_request'],
  malformed_payload: [400, 'invalid_request'],
  missing_payload: [400, 'invalid_request'],
  invalid_content_type: [415, 'invalid_request'],
  missing_content_type: [415, 'invalid_request'],
  bad_request: [400, 'invalid_request'],
  payload_too_large: [413, 'invalid_request'],
  internal: [500, 'internal'],
  feature_not_enabled: [400, 'invalid_request'],
  missing_document_edition_function: [400, 'invalid_request'],
  invalid_document_edition_function_filter: [400, 'invalid_request'],
  invalid_document_edition_context: [400, 'invalid_request'],
  invalid_document_filter: [400, 'invalid_request'],
  missing_document_id: [400, 'invalid_request'],
  invalid_document_id: [400, 'invalid_request'],
  index_primary_key_already_exists: [400, 'invalid_request'],
  index_primary_key_multiple_candidates_found: [400, 'invalid_request'],
  index_primary_key_no_candidate_found: [400, 'invalid_request'],
  edit_documents_by_function_error: [400, 'invalid_request'],
} as const
export type Code = keyof typeof CODES

export type ErrorBody = Readonly<{ message: string; code: Code; type: string; link: string }>

export class Failure extends Error {
  override readonly name = 'Failure'
  readonly code: Code

  constructor(code: Code, message: string) {
    super(message)
    this.code = code
  }

  get status(): number {
    return CODES[this.code][0]
  }
  get body(): ErrorBody {
    const { code, message } = this
    return { message, code, type: CODES[code][1], link: `https://docs.meilisearch.com/errors#${code}` }
  }
}
