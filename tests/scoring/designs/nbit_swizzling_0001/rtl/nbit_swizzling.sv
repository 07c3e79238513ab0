module nbit_swizzling #(parameter DATA_WIDTH = 64) (
    input  logic [DATA_WIDTH-1:0] data_in,
    input  logic [1:0]            sel,
    output logic [DATA_WIDTH-1:0] data_out,
    output logic [DATA_WIDTH-1:0] gray_out
);
    wire [DATA_WIDTH-1:0] swizzled [0:3];

    genvar s, i;
    generate
        for (s = 0; s < 4; s = s + 1) begin : split
            localparam SEGMENT = DATA_WIDTH >> s;
            for (i = 0; i < DATA_WIDTH; i = i + 1) begin : bit_
                assign swizzled[s][i] = data_in[i - i % SEGMENT + SEGMENT - 1 - i % SEGMENT];
            end
        end
    endgenerate

    assign data_out = swizzled[sel];
    assign gray_out = data_out ^ (data_out >> 1);
endmodule
