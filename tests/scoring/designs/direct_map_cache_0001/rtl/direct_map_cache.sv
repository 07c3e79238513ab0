module direct_map_cache #(
    parameter CACHE_SIZE = 256,
    parameter DATA_WIDTH = 16,
    parameter TAG_WIDTH = 5,
    parameter OFFSET_WIDTH = 3,
    parameter INDEX_WIDTH = $clog2(CACHE_SIZE)
) (
    input  logic                    clk,
    input  logic                    rst,
    input  logic                    enable,
    input  logic [INDEX_WIDTH-1:0]  index,
    input  logic [OFFSET_WIDTH-1:0] offset,
    input  logic                    comp,
    input  logic                    write,
    input  logic [TAG_WIDTH-1:0]    tag_in,
    input  logic [DATA_WIDTH-1:0]   data_in,
    input  logic                    valid_in,
    output logic                    hit,
    output logic                    dirty,
    output logic [TAG_WIDTH-1:0]    tag_out,
    output logic [DATA_WIDTH-1:0]   data_out,
    output logic                    valid,
    output logic                    error
);
    localparam WORDS = 1 << (OFFSET_WIDTH - 1);

    logic [TAG_WIDTH-1:0]  tags [0:CACHE_SIZE-1];
    logic [DATA_WIDTH-1:0] data_mem [0:CACHE_SIZE*WORDS-1];
    logic [CACHE_SIZE-1:0] valid_bits, dirty_bits;
    integer                i;

    wire [INDEX_WIDTH+OFFSET_WIDTH-2:0] place = {index, offset} >> 1;
    wire match = valid_bits[index] && tags[index] == tag_in;

    always @(posedge clk)
        if (rst) begin
            {hit, dirty, tag_out, data_out, valid, error, valid_bits, dirty_bits} <= 0;
            for (i = 0; i < CACHE_SIZE; i = i + 1) tags[i] <= 0;
            for (i = 0; i < CACHE_SIZE * WORDS; i = i + 1) data_mem[i] <= 0;
        end else if (enable) begin
            {hit, dirty, tag_out, data_out, valid} <= 0;
            error <= offset[0];
            if (!offset[0]) begin
                hit <= comp && match;
                valid <= valid_bits[index];
                dirty <= dirty_bits[index];
                tag_out <= tags[index];
                if (!write) data_out <= data_mem[place];
                else if (!comp) begin
                    tags[index] <= tag_in;
                    data_mem[place] <= data_in;
                    valid_bits[index] <= valid_in;
                    dirty_bits[index] <= 0;
                end else if (match) begin
                    data_mem[place] <= data_in;
                    dirty_bits[index] <= 1;
                    dirty <= 1;
                end
            end
        end
endmodule
