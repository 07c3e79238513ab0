// Brick sort has the lowest latency of the sorters at hand: it swaps all pairs of a pass in one clock, so eight orders take
// eight passes whatever they are, where the others handle one element a clock.
module order_matching_engine #(
    parameter PRICE_WIDTH = 16
) (
    input                        clk,
    input                        rst,
    input                        start,
    input                        circuit_breaker,
    input  [8*PRICE_WIDTH-1:0]   bid_orders,
    input  [8*PRICE_WIDTH-1:0]   ask_orders,
    output reg                   match_valid,
    output reg [PRICE_WIDTH-1:0] matched_price,
    output reg                   done
);
    wire bids_sorted, asks_sorted;
    wire [8*PRICE_WIDTH-1:0] bids, asks;
    wire [PRICE_WIDTH-1:0] best_bid = bids[7*PRICE_WIDTH +: PRICE_WIDTH];
    wire [PRICE_WIDTH-1:0] best_ask = asks[0 +: PRICE_WIDTH];

    brick_sorting_engine #(.N(8), .WIDTH(PRICE_WIDTH)) bid_sorter (
        .clk(clk), .rst(rst), .start(start), .in_data(bid_orders), .done(bids_sorted), .out_data(bids)
    );
    brick_sorting_engine #(.N(8), .WIDTH(PRICE_WIDTH)) ask_sorter (
        .clk(clk), .rst(rst), .start(start), .in_data(ask_orders), .done(asks_sorted), .out_data(asks)
    );

    // The breaker drops a match that stands as well as the one to come.
    always @(posedge clk or posedge rst)
        if (rst) begin
            {match_valid, matched_price, done} <= 0;
        end else begin
            done <= bids_sorted && asks_sorted;
            if (circuit_breaker) begin
                {match_valid, matched_price} <= 0;
            end else if (bids_sorted && asks_sorted) begin
                match_valid <= best_bid >= best_ask;
                matched_price <= best_bid >= best_ask ? best_bid : {PRICE_WIDTH{1'b0}};
            end
        end
endmodule
