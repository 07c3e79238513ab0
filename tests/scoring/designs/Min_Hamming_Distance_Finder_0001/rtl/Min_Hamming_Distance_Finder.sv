module Min_Hamming_Distance_Finder #(
    parameter BIT_WIDTH = 8,
    parameter REFERENCE_COUNT = 4
) (
    input  wire  [BIT_WIDTH-1:0]                 input_query,
    input  wire  [REFERENCE_COUNT*BIT_WIDTH-1:0] references,
    output logic [$clog2(REFERENCE_COUNT)-1:0]   best_match_index,
    output logic [$clog2(BIT_WIDTH+1)-1:0]       min_distance
);
    localparam WIDTH = $clog2(BIT_WIDTH + 1);

    wire [REFERENCE_COUNT*WIDTH-1:0] distances;
    integer n;

    genvar i;
    generate
        for (i = 0; i < REFERENCE_COUNT; i = i + 1) begin : reference
            Bit_Difference_Counter #(.BIT_WIDTH(BIT_WIDTH)) counter (
                .input_A(input_query), .input_B(references[i*BIT_WIDTH +: BIT_WIDTH]),
                .bit_difference_count(distances[i*WIDTH +: WIDTH])
            );
        end
    endgenerate

    always @* begin
        best_match_index = 0;
        min_distance = distances[0 +: WIDTH];
        for (n = 1; n < REFERENCE_COUNT; n = n + 1)
            if (distances[n*WIDTH +: WIDTH] < min_distance) begin
                best_match_index = n;
                min_distance = distances[n*WIDTH +: WIDTH];
            end
    end
endmodule
