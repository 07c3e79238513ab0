module direct_map_cache #(
    parameter CACHE_SIZE = 256,
    parameter DATA_WIDTH = 16,
    parameter TAG_WIDTH = 5,
    parameter OFFSET_WIDTH = 3,
    localparam INDEX_WIDTH = $clog2(CACHE_SIZE),
    localparam N = 2
) (
    input  logic                    enable,
    input  logic [INDEX_WIDTH-1:0]  index,
    input  logic [OFFSET_WIDTH-1:0] offset,
    input  logic                    comp,
    input  logic                    write,
    input  logic [TAG_WIDTH-1:0]    tag_in,
    input  logic [DATA_WIDTH-1:0]   data_in,
    input  logic                    valid_in,
    input  logic                    clk,
    input  logic                    rst,
    output logic                    hit,
    output logic                    dirty,
    output logic [TAG_WIDTH-1:0]    tag_out,
    output logic [DATA_WIDTH-1:0]   data_out,
    output logic                    valid,
    output logic                    error
);
    localparam WORDS = 1 << (OFFSET_WIDTH - 1);

    logic [TAG_WIDTH-1:0]  tags [0:N-1][0:CACHE_SIZE-1];
    logic [DATA_WIDTH-1:0] data_mem [0:N-1][0:CACHE_SIZE-1][0:WORDS-1];
    logic [CACHE_SIZE-1:0] valid_bits [0:N-1], dirty_bits [0:N-1];
    logic                  victimway, way;

    wire [OFFSET_WIDTH-2:0] word = offset[OFFSET_WIDTH-1:1];
    wire full = valid_bits[0][index] && valid_bits[1][index];
    wire hit0 = valid_bits[0][index] && tags[0][index] == tag_in;
    wire hit1 = valid_bits[1][index] && tags[1][index] == tag_in;
    wire miss = comp && !hit0 && !hit1;

    // The way to read: the one that hits, else the one that a write would replace; without comparison, the first valid one.
    always_comb
        if (comp) way = hit0 ? 1'b0 : hit1 ? 1'b1 : full ? victimway : valid_bits[0][index];
        else way = !valid_bits[0][index] && valid_bits[1][index];

    // The ways to write: an access fills both, and where both hold the tag, both take the data, or one would be stale.
    wire [N-1:0] put = !comp ? '1 : miss ? N'(1) << way : {hit1, hit0};

    always_ff @(posedge clk)
        if (rst || !enable) begin
            for (int w = 0; w < N; w++) begin
                valid_bits[w] <= '0;
                dirty_bits[w] <= '0;
            end
            {hit, dirty, data_out, valid} <= '0;
            if (rst) {error, tag_out, victimway} <= '0;
        end else begin
            error <= offset[0];
            {hit, dirty, valid} <= '0;
            if (offset[0]) data_out <= '0;
            else begin
                hit <= comp && !miss;
                if (!write) begin
                    valid <= valid_bits[way][index];
                    dirty <= dirty_bits[way][index];
                    tag_out <= tags[way][index];
                    data_out <= data_mem[way][index][word];
                end else begin
                    for (int w = 0; w < N; w++)
                        if (put[w]) begin
                            tags[w][index] <= tag_in;
                            data_mem[w][index][word] <= data_in;
                            valid_bits[w][index] <= valid_in;
                            dirty_bits[w][index] <= comp && !miss;
                        end
                    if (miss && full) victimway <= !victimway;
                end
            end
        end
endmodule
