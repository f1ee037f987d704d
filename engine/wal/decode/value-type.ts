/**
 * Describes what a column's type means for rendering, as plain JSON, because it is saved with the relation and used again by
 * re-runs: domains are already their base type here, and whatever has no JSON form of its own is text. Adding a
 * kind changes what new relations get; saved ones keep theirs, so that a re-run appends the same bytes.
 */
import type { ByteWriter } from '../../byte-writer.ts'

/** Writes the JSON of one value that is not null: Postgres' text from `start` to `end` of `text`. */
export type Render = (out: ByteWriter, text: DataView, start: number, end: number) => void

/** A type that is rendered in a way of its own, arrays of it aside. */
export type ScalarType = 'text' | 'boolean' | 'integer' | 'float' | 'time' | 'timestamp' | 'timestamptz' | 'interval' | 'json' | 'vector'

/** Says how the values of a column are rendered. */
export type ValueType = ScalarType | Readonly<{ array: ValueType; delimiter: string }>

const array = (element: ValueType, delimiter = ','): ValueType => ({ array: element, delimiter })

/**
 * The types whose oid is the same in every Postgres: [type, array of it, how it is rendered]. Date, numeric, money,
 * bytea, uuid, bit strings, geometric and network types, ranges and the rest are their text.
 * @see src/include/catalog/pg_type.dat
 */
const FIXED: readonly (readonly [type: number, array: number, ScalarType])[] = [
  [16, 1000, 'boolean'],
  [17, 1001, 'text'], // bytea
  [18, 1002, 'text'], // "char"
  [19, 1003, 'text'], // name
  [20, 1016, 'integer'], // int8
  [21, 1005, 'integer'], // int2
  [22, 1006, 'text'], // int2vector
  [23, 1007, 'integer'], // int4
  [24, 1008, 'text'], // regproc
  [25, 1009, 'text'],
  [26, 1028, 'integer'], // oid
  [27, 1010, 'text'], // tid
  [28, 1011, 'integer'], // xid
  [29, 1012, 'integer'], // cid
  [30, 1013, 'text'], // oidvector
  [114, 199, 'json'],
  [142, 143, 'text'], // xml
  [600, 1017, 'text'], // point
  [601, 1018, 'text'], // lseg
  [602, 1019, 'text'], // path
  [604, 1027, 'text'], // polygon
  [628, 629, 'text'], // line
  [650, 651, 'text'], // cidr
  [700, 1021, 'float'], // float4
  [701, 1022, 'float'], // float8
  [718, 719, 'text'], // circle
  [774, 775, 'text'], // macaddr8
  [790, 791, 'text'], // money
  [829, 1040, 'text'], // macaddr
  [869, 1041, 'text'], // inet
  [1033, 1034, 'text'], // aclitem
  [1042, 1014, 'text'], // bpchar
  [1043, 1015, 'text'], // varchar
  [1082, 1182, 'text'], // date
  [1083, 1183, 'time'],
  [1114, 1115, 'timestamp'],
  [1184, 1185, 'timestamptz'],
  [1186, 1187, 'interval'],
  [1266, 1270, 'time'], // timetz
  [1560, 1561, 'text'], // bit
  [1562, 1563, 'text'], // varbit
  [1700, 1231, 'text'], // numeric
  [2202, 2207, 'text'], // regprocedure
  [2205, 2210, 'text'], // regclass
  [2206, 2211, 'text'], // regtype
  [2950, 2951, 'text'], // uuid
  [2970, 2949, 'text'], // txid_snapshot
  [3220, 3221, 'text'], // pg_lsn
  [3614, 3643, 'text'], // tsvector
  [3615, 3645, 'text'], // tsquery
  [3734, 3735, 'text'], // regconfig
  [3769, 3770, 'text'], // regdictionary
  [3802, 3807, 'json'], // jsonb
  [3904, 3905, 'text'], // int4range
  [3906, 3907, 'text'], // numrange
  [3908, 3909, 'text'], // tsrange
  [3910, 3911, 'text'], // tstzrange
  [3912, 3913, 'text'], // daterange
  [3926, 3927, 'text'], // int8range
  [4072, 4073, 'text'], // jsonpath
  [4089, 4090, 'text'], // regnamespace
  [4096, 4097, 'text'], // regrole
  [4191, 4192, 'text'], // regcollation
  [4451, 6150, 'text'], // int4multirange
  [4532, 6151, 'text'], // nummultirange
  [4533, 6152, 'text'], // tsmultirange
  [4534, 6153, 'text'], // tstzmultirange
  [4535, 6155, 'text'], // datemultirange
  [4536, 6157, 'text'], // int8multirange
  [5038, 5039, 'text'], // pg_snapshot
  [5069, 271, 'integer'], // xid8
]

/** Holds, by oid, how the types are rendered whose oid is the same in every Postgres. */
export const FIXED_TYPES: ReadonlyMap<number, ValueType> = new Map<number, ValueType>([
  ...FIXED.flatMap(([type, arrayType, scalar]): [number, ValueType][] => [
    [type, scalar],
    [arrayType, array(scalar)],
  ]),
  [603, 'text'], // box
  [1020, array('text', ';')],
])
